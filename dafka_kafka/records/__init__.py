"""Kafka's record formats, decoded to columns and encoded from them, without I/O.

``record_batch`` has the current format, record batch v2; with ``message_set`` it decodes those of
Kafka 0.8 to 0.10, v0 and v1.
"""
