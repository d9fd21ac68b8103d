"""Kafka's record formats, decoded to columns and encoded from them, without I/O."""
