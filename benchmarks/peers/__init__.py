"""Dafka beside Apache Kafka, NATS JetStream and C Dafka, as a program of each would use it."""
