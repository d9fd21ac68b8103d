"""What holds of every error."""

from __future__ import annotations

import pickle

from dafka_core.error_base import DafkaError
from dafka_core.errors import StoreError


def test_notes_survive() -> None:
    error = StoreError("data", "full")
    error.add_note("while writing a block")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while writing a block"]


def test_base_without_facts() -> None:
    error = pickle.loads(pickle.dumps(DafkaError("something")))
    assert type(error) is DafkaError
    assert str(error) == "something"
