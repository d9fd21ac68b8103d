"""The limits of a store by their names, and the error that says which one it is."""

from __future__ import annotations

import pickle

import pytest

from dafka_core import ConfigError, StoreLimitError
from dafka_core.config.node_options import StoreOptions


def test_they_are_given_by_their_names() -> None:
    limits = StoreOptions.build({"max_topics": "7"}).store_limits
    assert limits["max_topics"] == 7
    assert limits["max_key_bytes"] == 0
    assert all(name.startswith("max_") for name in limits)


def test_one_that_cannot_be_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'max_partitions' = 0: must be at least 1"):
        StoreOptions.build({"max_partitions": 0})


def test_the_error_says_which_one_it_is_and_what_to_do() -> None:
    error = StoreLimitError("t", "P", "O", "max_topics", 7)
    assert str(pickle.loads(pickle.dumps(error))) == (
        "topic 't', partition P: the store accepts no records of it, by its option max_topics = 7 "
        "(owner O): free space there with retention or a deletion, or raise the option"
    )
