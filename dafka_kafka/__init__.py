"""The Kafka protocol in front of a store: a gateway, to which Kafka's clients connect."""
