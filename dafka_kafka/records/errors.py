"""What is wrong with records that a Kafka client has sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dafka_core.errors import DafkaError

CORRUPT_MESSAGE: Final = "CORRUPT_MESSAGE"
"""Octets are not as they were sent: a client sends them again."""

INVALID_RECORD: Final = "INVALID_RECORD"
"""They are as they were sent, and wrong: they would be so again."""

MESSAGE_TOO_LARGE: Final = "MESSAGE_TOO_LARGE"
"""They are valid, and too large together: Java's producer splits the batch and sends its parts."""

UNSUPPORTED_COMPRESSION_TYPE: Final = "UNSUPPORTED_COMPRESSION_TYPE"


@dataclass(eq=False)
class CorruptRecordsError(DafkaError, ValueError):
    """Octets that are no records of Kafka.  The only error that decoding raises.

    ``error`` is the name of Kafka's error that the client is answered.
    """

    sentence = "{reason} (Kafka's error {error})"
    error: str
    reason: str
