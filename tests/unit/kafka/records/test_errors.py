"""Errors of invalid records have a reason and Kafka's name."""

from __future__ import annotations

import pickle

from dafka_kafka import errors
from dafka_kafka.errors import KafkaError


def test_it_keeps_its_facts_and_names_an_error_of_kafka() -> None:
    made = errors.CorruptRecordsError(errors.CORRUPT_MESSAGE, "the CRC is wrong")
    for error in (made, pickle.loads(pickle.dumps(made))):
        assert str(error) == "the CRC is wrong (Kafka's error CORRUPT_MESSAGE)"
        assert (error.error, error.reason) == ("CORRUPT_MESSAGE", "the CRC is wrong")
        assert KafkaError[error.error] == KafkaError.CORRUPT_MESSAGE


def test_each_name_is_one_of_kafka() -> None:
    names = (errors.INVALID_RECORD, errors.UNSUPPORTED_COMPRESSION_TYPE)
    assert [KafkaError[name] for name in names] == [87, 76]
