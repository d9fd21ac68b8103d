"""The producer, with a store of ours or with bare sockets that pretend to be one."""

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from dafka_core import (
    BackPressureError,
    ClosedError,
    NoStoreError,
    NotAcknowledgedError,
    Producer,
    RecordTooLargeError,
    Store,
    Tower,
)
from dafka_core.errors import MissingStoresError, ProducerFencedError
from dafka_core.model.records import TopicPartition
from dafka_core.nodes.mesh import Mesh
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import Ack, Head
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.integration.nodes.conftest import Consume, Produce, Raw, Start
from tests.integration.nodes.content import flushed, has_acknowledged, has_published, stored, values
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, new_address
from tests.integration.nodes.staging import client_in


def test_offsets_count_up_and_flushed_records_are_on_disk(store: Store, produce: Produce) -> None:
    producer = produce("t")
    assert producer.next_offset == 0
    assert [producer.publish(value) for value in values(3)] == [0, 1, 2]
    assert producer.publish_many(values(20_000, 3)) == 3
    assert producer.publish_many([]) == 20_003
    assert producer.publish(b"") == 20_003
    assert producer.next_offset == 20_004
    mixed = values(2_000)
    for one, other in zip(mixed[::2], mixed[1::2], strict=True):
        producer.publish(one)
        producer.publish_many([other])
    producer.flush(PATIENCE_S)
    assert stored(store, "t", producer.address) == [*values(20_003), b"", *mixed]
    producer.flush(0)  # all is acknowledged


def test_a_flush_hurries_records_that_the_loop_has_not_sent(
    produce: Produce, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = produce("t", head_interval_ms=600_000)
    peer = raw(subscription(Head))
    peer.wait_until_subscribed(subscription(Ack, producer.address))
    producer.publish(b"0")
    wait_until(lambda: has_published(producer, 1))
    peer.send(Ack("t", producer.address, 0, peer.address))
    wait_until(lambda: has_acknowledged(producer, 1))
    woken: list[Mesh] = []

    def sleep_on(mesh: Mesh) -> None:
        woken.append(mesh)

    with ThreadPoolExecutor(1) as threads:
        with monkeypatch.context() as asleep:
            asleep.setattr(Mesh, "wake", sleep_on)
            producer.publish(b"1")
            flushing = threads.submit(producer.flush, PATIENCE_S)
            wait_until(lambda: len(woken) == 2, "the flush to call the loop")
        woken[-1].wake()
        # The first HEAD may have another cause; the interval of the others is that of a hurry.
        peer.wait_for(Head, 3)
        producer.__exit__(OSError, OSError(), None)
        with pytest.raises(ClosedError):
            flushing.result(PATIENCE_S)


def test_an_invalid_value_is_refused(produce: Produce) -> None:
    producer = produce("t", max_record_bytes=4_096)
    with pytest.raises(TypeError, match="must be bytes"):
        producer.publish("text")  # type: ignore[arg-type]
    says = "4097 bytes, and this producer takes at most 4096: .* max_record_bytes"
    with pytest.raises(RecordTooLargeError, match=says) as refused:
        producer.publish(bytes(4_097))
    assert (refused.value.offset, refused.value.size_bytes) == (0, 4_097)
    with pytest.raises(RecordTooLargeError, match="offset 2"):
        producer.publish_many([b"0", b"1", bytes(4_097)])
    assert producer.publish(bytes(4_096)) == 0


def test_threads_may_share_one(store: Store, produce: Produce) -> None:
    # So little room that every call waits for it again and again.
    producer = produce("t", max_unacked_records=64)
    took: list[tuple[int, int]] = []

    def publish(thread: int) -> None:
        for number in range(20):
            size = 1 + (thread + number) % 3
            took.append((producer.publish_many([b"%d" % thread] * size), size))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(publish, range(4)))
    producer.flush(PATIENCE_S)
    ends = [0]
    for first, size in sorted(took):
        assert first == ends[-1]
        ends.append(first + size)
    assert len(stored(store, "t", producer.address)) == ends[-1]


def test_records_of_other_threads_come_before_or_after_a_call(produce: Produce) -> None:
    producer, count = produce("t", max_unacked_records=10**7, close_timeout_s=0), 10**6
    small: list[int] = []
    ended = threading.Event()

    def publish() -> None:
        while not ended.is_set():
            small.append(producer.publish(b""))

    other = threading.Thread(target=publish)
    other.start()
    wait_until(lambda: small)
    first = producer.publish_many([b""] * count)
    ended.set()
    other.join(PATIENCE_S)
    assert [offset for offset in small if first <= offset < first + count] == []
    with pytest.raises(NotAcknowledgedError):
        producer.close()


def test_unacknowledged_records_are_an_error_that_counts_them(produce: Produce, raw: Raw) -> None:
    producer, peer = produce("t"), raw()
    peer.wait_until_subscribed(subscription(Ack, producer.address))
    producer.publish_many(values(10))
    wait_until(partial(has_published, producer, 10))
    peer.send(Ack("t", producer.address, 3))
    wait_until(partial(has_acknowledged, producer, 4))
    with pytest.raises(NotAcknowledgedError, match="6 records are not acknowledged") as missing:
        producer.flush(0.05)
    error = missing.value
    assert (error.topic, error.partition, error.count) == ("t", producer.address, 6)
    assert error.waited_s == 0.05


def test_closing_without_acknowledgements_is_an_error(tower: str) -> None:
    producer = Producer("t", tower=tower, close_timeout_s=0.05)
    producer.publish_many(values(7))
    with pytest.raises(NotAcknowledgedError) as missing:
        producer.close()
    assert missing.value.count == 7
    producer.close()
    with pytest.raises(ClosedError):
        producer.publish(b"more")


def test_an_error_of_the_application_is_not_hidden(tower: str) -> None:
    def fail() -> None:
        with Producer("t", tower=tower, close_timeout_s=3_600) as producer:
            producer.publish(b"0")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


@pytest.mark.parametrize(
    "limit", [{"max_unacked_records": 5}, {"max_unacked_bytes": 5}], ids=["records", "bytes"]
)
def test_publish_waits_for_room_and_raises_without_it(
    produce: Produce, raw: Raw, limit: dict[str, int]
) -> None:
    producer = produce("t", publish_timeout_s=0.05, **limit)
    for value in values(5):
        producer.publish(value)
    with pytest.raises(BackPressureError, match="5 records wait") as full:
        producer.publish(b"x")
    assert (full.value.unacknowledged, full.value.partition) == (5, producer.address)
    assert producer.next_offset == 5
    peer = raw()
    peer.wait_until_subscribed(subscription(Ack, producer.address))
    wait_until(partial(has_published, producer, 5))
    peer.send(Ack("t", producer.address, 0))
    wait_until(partial(has_acknowledged, producer, 1))
    assert producer.publish(b"x") == 5


def test_a_call_that_has_waited_for_another_one_waits_no_longer(
    produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, begun, times = produce("t", max_unacked_records=1), threading.Event(), [100.0]
    producer.publish(b"0")

    def monotonic() -> float:
        begun.set()
        return times[-1]

    monkeypatch.setattr("dafka_core.nodes.producer.time", SimpleNamespace(monotonic=monotonic))
    with ThreadPoolExecutor(1) as threads:
        with producer._turn:
            waiting = threads.submit(producer.publish, b"1")
            assert begun.wait(PATIENCE_S)
            times.append(160.0)
        with pytest.raises(BackPressureError, match="none came for 60 s"):
            waiting.result(PATIENCE_S)


def test_waiting_for_room_ends_with_the_producer(tower: str) -> None:
    producer = Producer("t", tower=tower, max_unacked_records=1, close_timeout_s=0)
    producer.publish(b"0")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(producer.publish, b"1")
        with pytest.raises(NotAcknowledgedError):
            producer.close()
        with pytest.raises(ClosedError):
            waiting.result(PATIENCE_S)


def test_a_producer_that_is_interrupted_while_it_starts_leaves_the_mesh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt() -> None:
        wait_until(lambda: hub.relay.discovered.count() == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dafka_core.nodes.producer.CONNECT_S", PATIENCE_S)
    before = signal.signal(signal.SIGUSR1, raise_interrupt)
    try:
        with Tower(**ANY_PORTS) as hub:
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                Producer("t", tower=hub.tower)
            assert "dafka-producer" not in {each.name for each in threading.enumerate()}
    finally:
        signal.signal(signal.SIGUSR1, before)


ROOT = Path(__file__).parents[3]
COUNT = 10
LOST = f"{COUNT} records are not acknowledged after"


def ended(tower: str, how: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.integration.nodes.endings", tower, how, str(timeout_s)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("open", 0),
        ("dropped", 0),
        ("daemon", 0),
        ("exit-0", 0),
        ("error-open", 1),
        ("fork", 0),
        ("child-fork", 0),
        ("child-spawn", 0),
        pytest.param("exit-none", 0, marks=pytest.mark.nightly),
        pytest.param("child-fork-error", 1, marks=pytest.mark.nightly),
    ],
)
def test_the_end_waits_for_acknowledgements(tower: str, store: Store, how: str, code: int) -> None:
    process = ended(tower, how, PATIENCE_S)
    assert process.returncode == code, process.stderr
    assert LOST not in process.stderr
    assert [info.end for info in store.log.partitions("t")] == [COUNT]


@pytest.mark.parametrize("how", ["open", "error-open", "daemon"])
def test_unacknowledged_records_at_the_end_are_reported(tower: str, how: str) -> None:
    process = ended(tower, how, 0.2)
    assert process.returncode == 1
    assert re.search(f"{LOST} 0.[12] s", process.stderr), process.stderr
    assert ("the program's own" in process.stderr) == ("error" in how)


@pytest.mark.parametrize(("how", "code"), [("exit-3", 3), ("error", 1)])
def test_a_program_that_fails_is_not_kept_waiting(tower: str, how: str, code: int) -> None:
    process = ended(tower, how, PATIENCE_S)
    assert process.returncode == code
    # In the log; and where a traceback is shown, at the error.
    assert process.stderr.count(f"{LOST} 0 s") == (2 if how == "error" else 1), process.stderr


def test_producers_wait_side_by_side(tower: str) -> None:
    process = ended(tower, "several", 0.5)
    assert process.returncode == 1
    waited = [line.partition(LOST)[2].split()[0] for line in process.stderr.splitlines()]
    assert sorted(waited) == ["0", "0", "0.5"]


def test_whatever_else_happens_at_the_end_still_does(tower: str) -> None:
    process = ended(tower, "others", 0.0)
    assert (process.returncode, process.stdout) == (1, "unflushed an exit function\n")


def test_lives_that_begin_by_a_clock_decades_ahead_are_valid(
    store: Store, start: Start, produce: Produce, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise peers drop all records of them, also after the clock was set."""
    consumer, tp = consume("t"), TopicPartition("t", new_address())
    with monkeypatch.context() as clock:
        clock.setattr("time.time", lambda: 4e9)  # in the year 2096
        producer = produce("t", address=new_address())
        other = start("other")
    flushed(producer, [b"of a producer"])
    other.append_queue.append(tp, [b"of a client"], timeout_s=PATIENCE_S)
    found = [consumer.poll(PATIENCE_S) for _ in range(2)]
    assert {each.value for each in found if each} == {b"of a producer", b"of a client"}
    wait_until(lambda: store.log.end(tp) == 1)
    assert produce("t", address=producer.address).next_offset == 1


def test_of_two_producers_with_one_address_the_newer_continues(
    store: Store, produce: Produce
) -> None:
    """As when a job is started again while it still runs."""
    older = flushed(produce("t"), [b"a"])
    newer = flushed(produce("t", address=older.address), [b"c"])
    with pytest.raises(ProducerFencedError) as fenced:
        flushed(older, [b"b"])
    assert fenced.value.partition == older.address
    flushed(newer, [b"d"])
    assert stored(store, "t", newer.address) == [b"a", b"c", b"d"]


def test_resuming_without_a_store_is_an_error(tower: str) -> None:
    with pytest.raises(NoStoreError, match="no store was heard of") as unknown:
        Producer("t", tower=tower, address=new_address(), resume_timeout_s=0.3)
    assert (unknown.value.towers, unknown.value.waited_s) == ((tower,), 0.3)


def test_resuming_names_the_store_that_it_waited_for() -> None:
    with ForkedCluster(stores=2) as cluster:
        away, _ = cluster.stores
        cluster.kill_store(1)
        with Producer("t", tower=cluster.tower) as producer:
            producer.publish(b"0")
        cluster.start_store(1)
        with client_in(cluster, 1) as client:  # it has met the store that it has the record from
            client.wait(TopicPartition("t", producer.address), 1, timeout_s=PATIENCE_S)
        cluster.kill_store(0)
        cluster.kill_store(1)
        cluster.start_store(1)
        with pytest.raises(MissingStoresError, match="resume_timeout_s") as lacking:
            Producer("t", tower=cluster.tower, address=producer.address, resume_timeout_s=1)
    assert (lacking.value.needed, lacking.value.stores) == (2, (away,))
