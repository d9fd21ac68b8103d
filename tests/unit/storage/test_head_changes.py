"""Changed partitions, and the watches that they wake."""

from threading import Event

import pytest

from dafka_core.model.records import TopicPartition
from dafka_core.storage import environment
from dafka_core.storage.environment import HeadChanges

A, B, C = (TopicPartition("t", name) for name in "ABC")
OTHER = TopicPartition("u", "A")


def test_what_has_changed_since() -> None:
    changes = HeadChanges()
    assert changes.since(0, None) == []
    changes.add([A, B])
    changes.add([OTHER])
    changes.add([A])
    assert changes.number == 3
    assert changes.since(3, None) == []
    assert changes.since(2, None) == [A]
    assert set(changes.since(0, None) or ()) == {A, B, OTHER}
    assert set(changes.since(0, frozenset("t")) or ()) == {A, B}
    assert changes.since(1, frozenset("u")) == [OTHER]
    changes.add([])
    assert changes.number == 3


def test_what_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAX_KEPT_CHANGES", 2)
    changes = HeadChanges()
    assert changes.since(1, None) is None  # a future change
    assert changes.since(-1, None) is None
    for tp in (A, B, A, C):
        changes.add([tp])
    assert changes.since(1, None) is None
    assert changes.since(2, None) == [C, A]


def test_only_who_asked_is_woken() -> None:
    changes = HeadChanges()
    changes.add([A])
    with (
        changes.waking(Event(), 1, None) as everything,
        changes.waking(Event(), 1, frozenset("tv")) as topics,
        changes.waking(Event(), 1, frozenset("u")) as others,
        changes.waking(Event(), 0, frozenset("t")) as behind,
        changes.waking(Event(), 7, frozenset("u")) as nonsense,
    ):
        woken = [each.is_set() for each in (everything, topics, others, behind, nonsense)]
        assert woken == [False, False, False, True, True]
        changes.add([B, C], wakes=False)
        assert changes.since(1, None) == [C, B]
        assert not everything.is_set()
        changes.add([B, C])
        assert [each.is_set() for each in (everything, topics, others)] == [True, True, False]
    assert changes._watchers == {}
