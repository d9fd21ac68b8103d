"""What holds of every error."""

from __future__ import annotations

import pickle

import pytest

from dafka_core.error_base import DafkaError, is_secret
from dafka_core.errors import StoreError


def test_notes_survive() -> None:
    error = StoreError("data", "full")
    error.add_note("while writing a block")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while writing a block"]


def test_base_without_facts() -> None:
    error = pickle.loads(pickle.dumps(DafkaError("something")))
    assert type(error) is DafkaError
    assert str(error) == "something"


@pytest.mark.parametrize(
    ("option", "secret"),
    [
        ("sasl.jaas.config", True),
        ("SSL.keystore", True),
        ("paswd", True),
        ("api_key", True),
        ("dafka.key", True),
        ("KEY", True),
        ("monkey", False),
        ("subscribe", False),
        ("classLoader", False),
        ("key.deserializer", False),
    ],
)
def test_names_of_secrets(option: str, secret: bool) -> None:
    assert is_secret(option) is secret
