"""Replies with a question's number that are no answers."""

from __future__ import annotations

from dafka_core.model.epochs import NO_LIFE
from dafka_core.protocol.messages import HistoryReply
from tests.unit.protocol.model import TP
from tests.unit.protocol.test_store_directory import (
    ME,
    answered,
    ask,
    directory,
    entry,
    greet,
    reply,
)


def test_who_tells_a_history_that_was_not_asked_for_is_no_store() -> None:
    """A producer may tell that of its partition, and has no heads to tell then."""
    stores = directory()
    greet(stores, "S1")
    heads = ask(stores, now=1.0)
    history = stores.ask_history(1.0, TP)[0]
    other = TP._replace(partition="B" * 32)
    for question, tp in ((heads, TP), (history, other)):
        told = HistoryReply(ME, question.query.query, "P1", *tp, 5, NO_LIFE, ())
        assert stores.on_message(1.0, told) == []
    assert stores.stores == ["S1"]
    reply(stores, heads, "S1", entry(9), now=1.0)
    assert answered(stores, heads, 1.0)
    stores.on_message(1.0, HistoryReply(ME, history.query.query, "S1", *TP, 9, NO_LIFE, ()))
    assert answered(stores, history, 1.0)
