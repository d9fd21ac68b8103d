"""A store that is asked again and again."""

from __future__ import annotations

from pathlib import Path

from dafka_core.console.store_link import StoreLink
from dafka_core.records import TopicPartition
from dafka_core.security_options import NO_KEYS
from dafka_core.testing import StoreDouble, wait_until

TP = TopicPartition("t", "A" * 32)


def test_what_has_changed_is_told_and_what_all_takes_seldom(tmp_path: Path) -> None:
    with StoreDouble(tmp_path) as store, StoreLink(store.location, NO_KEYS) as link:
        store.append(TP, [b"x" * 100] * 5)
        link.ask()
        assert link.heads is not None
        assert link.heads.complete
        assert [(info.tp, info.end) for info in link.heads.heads] == [(TP, 5)]
        assert link.is_facts_due(are_new=False)
        (fact,) = link.ask_facts()
        assert (fact.records, link.is_facts_due(are_new=False)) == (5, False)
        # Of a partition that is new this is not waited for as long.
        wait_until(lambda: link.is_facts_due(are_new=True))
        assert not link.is_facts_due(are_new=False)
        state = link.state(1, 0)
        assert state.here
        assert state.space is not None
        assert state.space.file_bytes > 0
        link.ask()
        assert link.heads is not None
        assert (link.heads.complete, link.heads.heads) == (False, ())


def test_a_store_that_is_gone_is_said_and_asked_for_everything_when_it_is_back(
    tmp_path: Path,
) -> None:
    with StoreDouble(tmp_path) as store, StoreLink(store.location, NO_KEYS) as link:
        store.append(TP, [b"x"])
        link.ask()
        assert len(link.ask_facts()) == 1
        port = store.port
        store.stop()
        link.ask()
        state = link.state(0, 0)
        assert (state.here, link.heads, link.ask_facts()) == (False, None, [])
        assert state.store in state.failure
        store.start(port)

        def answers() -> bool:
            link.ask()
            return link.heads is not None

        wait_until(answers, "gRPC connects again")
        assert link.heads is not None
        assert link.heads.complete
        assert link.state(1, 0).failure == ""
