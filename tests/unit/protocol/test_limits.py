"""Names that peers choose: as many as may be."""

from __future__ import annotations

from dafka_core.protocol.limits import RecentNames


def test_the_oldest_name_is_dropped() -> None:
    names = RecentNames[int](2)
    for number, name in enumerate("abac"):
        names.keep(name, number)
    assert names == {"a": 2, "c": 3}
