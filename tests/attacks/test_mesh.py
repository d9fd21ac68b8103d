"""Attacks on the mesh, each in the open and on a cluster with keys (tests/situations.md).

In the open most of them succeed: that is what keys are for.  With keys none does, whether the
attacker is a stranger or has a key for something else, and honest nodes continue to work.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from dafka_core.errors import DafkaError, ProducerFencedError
from dafka_core.model.epochs import EpochId
from dafka_core.model.records import RecordBatch, TopicPartition, stamped_once
from dafka_core.protocol import beacons
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import NodeBeacon, encode_node_beacon
from dafka_core.testing import wait_until
from tests.attacks.world import TOPIC, Attacker, World, attacked
from tests.integration.nodes.peers import PATIENCE_S, RawPeer, new_address

ROUNDS = 40  # repetitions of an attack that must fail, beside honest work

FEW_PEERS = 500
"""The most peers of a node in each test but a nightly one: each false one costs connections."""

LATER = EpochId(2**31, 1, 1)  # a life newer than any
FAR_US = 4_000_000_000_000_000  # in the year 2096


class Attack(NamedTuple):
    """An attack, the check of its success, and whether it succeeds in the open."""

    does: Callable[[World, RawPeer], object]
    has_succeeded: Callable[[World, RawPeer], bool]
    in_the_open: bool = True
    subscribes: tuple[bytes, ...] = ()
    with_store: bool = True


def _stored(world: World, tp: TopicPartition) -> list[bytes]:
    assert world.store is not None
    infos = [each for each in world.store.log.partitions(tp.topic) if each.tp == tp]
    ranges = [(tp, info.earliest, info.end) for info in infos]
    batches = [batch for each in ranges for batch in world.store.log.read(*each)]
    return [value for batch in batches for value in batch.values]


def _own(raw: RawPeer) -> TopicPartition:
    return TopicPartition(TOPIC, raw.address)


def _heard(raw: RawPeer) -> bytes:
    return b"".join(frame for frames in [*raw.heard] for frame in frames)


def _forge(world: World, raw: RawPeer) -> None:
    for offset in range(world.producer.next_offset, world.producer.next_offset + 3):
        raw.send(m.RecordMessage(TOPIC, world.victim, offset, b"forged"))
        raw.send(m.Head(TOPIC, world.victim, offset))


def _is_forged(world: World, raw: RawPeer) -> bool:
    record = world.consumer.poll(0)
    delivered = record is not None and record.value == b"forged"
    return delivered or b"forged" in _stored(world, TopicPartition(TOPIC, world.victim))


def _acknowledge(world: World, raw: RawPeer) -> None:
    raw.send(m.Ack(TOPIC, world.victim, world.producer.next_offset - 1))


def _fence(world: World, raw: RawPeer) -> None:
    of = (0, raw.address, TOPIC, world.victim, world.producer.next_offset)
    raw.send(m.HistoryReply(world.victim, *of, LATER, ()))


def _is_fenced(world: World, raw: RawPeer) -> bool:
    try:
        world.publish()
    except ProducerFencedError:
        return True
    except DafkaError:  # not yet acknowledged
        return False
    return False


def _replay(world: World, raw: RawPeer) -> None:
    """Return every captured frame, or what an eavesdropper would have captured."""
    for frames in [*raw.heard][-50:]:
        raw.send_frames(frames)
    raw.send(m.RecordMessage(TOPIC, world.victim, 0, b"secret 0"))


def _is_doubled(world: World, raw: RawPeer) -> bool:
    values = _stored(world, TopicPartition(TOPIC, world.victim))
    return len(values) != len(set(values))


def _poison(world: World, raw: RawPeer) -> None:
    batch = RecordBatch.of(_own(raw), 0, [b"from the future"])
    batch = replace(batch, times=stamped_once(1, FAR_US))
    packed = m.DirectRecordBatches.of(raw.address, [batch])
    raw.send(m.RecordBatchMessage(*_own(raw), 0, 1, packed.value, runs=packed.runs))


def _is_poisoned(world: World, raw: RawPeer) -> bool:
    assert world.store is not None
    return any(time_us > FAR_US // 2 for _, time_us in world.store.log.times(_own(raw), 0, 1))


def _flood(world: World, raw: RawPeer) -> None:
    for port in range(1, 2 * beacons.MAX_PEERS // ROUNDS):
        raw.send_beacon(encode_node_beacon(NodeBeacon(new_address(), "127.0.0.1", port)))


def _is_flooded(world: World, raw: RawPeer) -> bool:
    assert world.store is not None
    return len(world.store.mesh.peers.table) > beacons.MAX_PEERS


def _ask(world: World, raw: RawPeer) -> None:
    raw.send(m.HeadsQuery(raw.address, 1, ()))
    raw.send(m.GetHeads("", raw.address))
    raw.send(m.Fetch(raw.address, TOPIC, world.victim, 0, 100_000))


def _spoil(world: World, raw: RawPeer) -> None:
    whole = m.RecordMessage(TOPIC, world.victim, 0, b"x")
    raw.send_frames([b""])
    raw.send_frames([bytes(range(256)) * 16] * 9)
    for letter in range(256):
        raw.send_frames([bytes([letter]) + b"t\0\x01\xff\xff\xff\xff"])
        raw.send_frames([bytes([letter]) + whole.topic.encode(), b"\xff" * 300])
    for letter in m.COMMANDS:
        raw.subscribe(bytes([letter]) + raw.address.encode() + b"x" * 300)
        raw.subscribe(bytes([letter]) + raw.address.encode() + b"\0x")


ATTACKS = {
    "joins": Attack(
        lambda world, raw: None,
        lambda world, raw: raw.address in world.producer.mesh.peers.table.nodes(),
    ),
    "reads what is published": Attack(
        lambda world, raw: world.publish(),
        lambda world, raw: b"secret" in _heard(raw),
        subscribes=(b"",),
    ),
    "writes to a topic": Attack(
        lambda world, raw: raw.send(m.RecordMessage(*_own(raw), 0, b"spam")),
        lambda world, raw: bool(_stored(world, _own(raw))),
    ),
    "forges records of another one's partition": Attack(_forge, _is_forged),
    "acknowledges falsely": Attack(
        _acknowledge, lambda world, raw: world.producer.acknowledged > 0, with_store=False
    ),
    "fences another one's producer": Attack(_fence, _is_fenced),
    "replays old frames": Attack(_replay, _is_doubled, in_the_open=False, subscribes=(b"",)),
    "poisons timestamps": Attack(_poison, _is_poisoned, in_the_open=False),
    "floods beacons": Attack(_flood, _is_flooded, in_the_open=False),
    "asks for everything": Attack(
        _ask,
        lambda world, raw: world.victim.encode() in _heard(raw),
        subscribes=(b"s", b"E", b"D", b"p"),
    ),
    "sends malformed frames": Attack(_spoil, _is_doubled, in_the_open=False),
}
"""By what tests/situations.md calls them."""


@pytest.mark.parametrize("who", Attacker)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_succeeds_in_the_open_alone(
    name: str, who: Attacker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beacons, "MAX_PEERS", FEW_PEERS)
    check(name, who, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("who", Attacker)
def test_beacons_of_as_many_peers_as_may_be_do_no_harm(who: Attacker, tmp_path: Path) -> None:
    check("floods beacons", who, tmp_path)


def check(name: str, who: Attacker, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    # An insider has a key and may join: that is no attack.
    is_expected = attack.in_the_open and who is Attacker.IN_THE_OPEN
    is_expected |= name == "joins" and who is Attacker.INSIDER
    with attacked(tmp_path, who, *attack.subscribes, with_store=attack.with_store) as (world, raw):
        world.publish()

        def tried() -> bool:
            attack.does(world, raw)
            return attack.has_succeeded(world, raw)

        if is_expected:
            wait_until(tried, name)
            return
        for _ in range(ROUNDS):
            time.sleep(0.01)
            world.publish()
            assert not tried()
        if world.store is not None:
            published = world.producer.next_offset
            world.producer.flush(PATIENCE_S)
            wait_until(
                lambda: len(_stored(world, TopicPartition(TOPIC, world.victim))) == published
            )
