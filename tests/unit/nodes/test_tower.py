"""The number of nodes that send beacons to a tower."""

import logging
import time
import tracemalloc

import pytest

from dafka_core.errors import ProtocolError
from dafka_core.nodes import security, tower
from dafka_core.nodes.security import PROOF_S, Claims, RefusedSubscriptions
from dafka_core.nodes.tower import SILENT_S, DiscoveredNodes


def test_a_node_counts_while_its_beacons_arrive(caplog: pytest.LogCaptureFixture) -> None:
    nodes, now = DiscoveredNodes(), time.monotonic()
    with caplog.at_level(logging.INFO, "dafka.tower"):
        nodes.note(now - 2 * SILENT_S, "A", "tcp://h:1")
        nodes.note(now, "B", "tcp://h:2")
        nodes.note(now, "B", "tcp://h:2")
    assert nodes.count() == 1
    assert [each.getMessage() for each in caplog.records] == [
        "node A has come, at tcp://h:1",
        "node B has come, at tcp://h:2",
        "node A is silent",
    ]


def test_forged_nodes_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower, "MAX_PEERS", 10)
    nodes, now = DiscoveredNodes(), time.monotonic()
    for number in range(1_000):
        nodes.note(now, f"N{number}", "tcp://h:1")
    assert nodes.count() == 10


AT = "tcp://127.0.0.1:1"


def test_an_endpoint_is_offered_to_the_next_claimant_after_a_time() -> None:
    claims = Claims()
    assert claims.key_at(AT) == ""
    assert not claims.take(0, AT, "honest")
    assert not claims.take(5, AT, "honest")
    assert claims.key_at(AT) == "honest"
    claims.forget(AT)
    assert not claims.take(0, AT, "mallory")
    with pytest.raises(ProtocolError, match="another node"):
        claims.take(PROOF_S - 0.1, AT, "honest")
    # A repeated announcement does not extend the time.
    assert not claims.take(PROOF_S - 0.1, AT, "mallory")
    assert claims.take(PROOF_S, AT, "honest")
    with pytest.raises(ProtocolError):
        claims.take(PROOF_S + 0.1, AT, "mallory")
    assert claims.key_at(AT) == "honest"


def test_a_proved_endpoint_keeps_its_key_until_the_connection_ends() -> None:
    claims = Claims()
    claims.take(0, AT, "honest")
    claims.prove(AT, is_proved=True)
    with pytest.raises(ProtocolError):
        claims.take(1_000, AT, "mallory")
    claims.prove(AT, is_proved=False)
    assert claims.take(1_000, AT, "a node restarted on the same port")


def test_a_forgotten_endpoint_has_no_key() -> None:
    claims = Claims()
    claims.prove(AT, is_proved=True)
    assert claims.key_at(AT) == ""
    claims.take(0, AT, "key")
    for _ in range(2):
        claims.forget(AT)
        assert claims.key_at(AT) == ""


def test_each_refused_subscription_is_ended_once() -> None:
    refused = RefusedSubscriptions()
    assert not refused.end(b"pA")
    refused.note(b"pA")
    refused.note(b"pA")
    refused.note(b"pB")
    assert [refused.end(b"pA") for _ in range(3)] == [True, True, False]
    assert refused.end(b"pB")
    assert len(refused.counts) == 0


def test_beyond_the_limit_every_end_counts_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MOST_REFUSED", 3)
    refused = RefusedSubscriptions()
    for octet in range(9):
        refused.note(bytes([octet]))
    assert len(refused.counts) == 3
    assert refused.end(b"pA")
    assert [refused.end(bytes([octet])) for octet in range(3)] == [True] * 3
    # All known ones have ended: it counts again.
    assert not refused.end(b"pA")
    refused.note(b"pA")
    assert refused.end(b"pA")


def test_a_long_prefix_takes_no_more_memory_than_a_short_one() -> None:
    refused = RefusedSubscriptions()
    tracemalloc.start()
    for number in range(1_000):
        refused.note(b"%4096d" % number)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(refused.counts) == 1_000
    assert taken < 500_000
    assert refused.end(b"%4096d" % 7)
