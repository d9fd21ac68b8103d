"""What every message has: checks when it is made, of each field and of them together."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from dafka_core.errors import ProtocolError
from dafka_core.protocol import messages
from dafka_core.protocol.message_base import Message, OfPartition, UpTo
from tests.unit.protocol.vectors import VECTORS

KINDS = [
    kind
    for _, kind in inspect.getmembers(messages, inspect.isclass)
    if issubclass(kind, Message) and kind.__module__ == messages.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_field_of_a_message_that_travels_is_checked(kind: type[Message]) -> None:
    made = next(vector.message for vector in VECTORS if type(vector.message) is kind)
    make: Any = kind
    for name in kind.kinds.keys() - {"life", "promised"}:  # any numbers are a life
        fields = {each: getattr(made, each) for each in make.__slots__}
        with pytest.raises((ProtocolError, TypeError, AttributeError)):
            make(**fields | {name: object()})


def test_messages_of_a_partition_name_it() -> None:
    for message in (vector.message for vector in VECTORS):
        if isinstance(message, OfPartition):
            assert message.tp == (message.topic, message.partition)
        if isinstance(message, UpTo):
            assert message.end == message.sequence + 1
