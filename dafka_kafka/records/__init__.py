"""Kafka's records: from the octets that its clients send and read, to columns, and back.

No node, no socket and no disk is known here.  ``record_batch`` has the format of today, Kafka's
record batch v2, and decodes those of Kafka 0.8 to 0.10, v0 and v1, with ``message_set``.
"""
