"""Kafka's consumer groups: members, assignments and committed offsets."""
