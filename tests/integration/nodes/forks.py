"""Programs that fork while nodes are open.

Arguments: a tower, a directory, and the name of the program.
"""

import contextlib
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dafka_core import (
    BackPressureError,
    Consumer,
    EmbeddedCluster,
    ForkedError,
    NotAcknowledgedError,
    Producer,
    Reader,
    Store,
    Tower,
)
from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from tests.integration.nodes.peers import ANY_PORTS

tower, directory, which = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
SOON_S = 60.0
FULL: dict[str, Any] = {
    "tower": tower,
    "max_unacked_records": 1,
    "publish_timeout_s": 0.05,
    "close_timeout_s": 0,
}


def refused(use: Callable[[], object]) -> str:
    """Return the result of using an inherited node."""
    try:
        return f"did {use()!r}"
    except ForkedError as error:
        return f"refused {error.what}" if error.owner == os.getppid() else str(error)


def in_fork(work: Callable[[], None]) -> None:
    """Run ``work`` in a forked child; its exit code, if any, becomes the program's."""
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(code)


def uses() -> None:
    """Use every kind of node in the child, then the parent's."""
    with (
        Tower(**ANY_PORTS) as hub,
        Store(directory / "store", tower=tower) as store,
        Producer("t", tower=tower) as producer,
        Consumer(tower=tower) as consumer,
        Reader(tower=tower) as reader,
        Log(directory / "log") as log,
        EmbeddedCluster(0) as cluster,
    ):
        log.append([RecordBatch.of(TopicPartition("t", "p"), 0, [b"0"])])
        consumer.subscribe("t")
        publish = producer.publish
        publish(b"0")
        publish(b"1")
        producer.flush(SOON_S)
        records = iter(consumer)
        assert next(records).value == b"0"
        batches: Any = reader.read(TopicPartition("t", producer.address), 0, 2, timeout_s=SOON_S)
        next(batches)
        logs = LocalLogs()
        opened = (hub, store, producer, consumer, reader, log, cluster, logs)

        def child() -> None:
            for use in (
                lambda: publish(b"of the child"),
                lambda: producer.publish(b"of the child"),
                lambda: producer.publish_many([b"of the child"]),
                lambda: producer.flush(SOON_S),
                producer.__enter__,
                lambda: consumer.poll(SOON_S),
                lambda: next(records),
                lambda: next(iter(consumer)),
                lambda: next(consumer.batches()),
                lambda: consumer.subscribe("u"),
                lambda: reader.partitions(timeout_s=SOON_S),
                lambda: store.wait(0),
                lambda: hub.wait(0),
                lambda: log.end(TopicPartition("t", "p")),
                lambda: logs.open(StoreLocation("", ())),
            ):
                print(refused(use))
            batches.close()
            for each in opened:
                each.close()
            # The child may have nodes of its own.  Both stores have it: the parent's one ends.
            with Producer("t", tower=tower, acks=2) as own:
                own.publish(b"own")

        in_fork(child)
        in_fork(lambda: None)  # which closes nothing
        assert cluster.directory.is_dir()
        assert publish(b"2") == 2
        producer.flush(SOON_S)
        assert next(records).value == b"1"


def holds() -> None:
    """A child lives on when its parent is killed."""
    store, cluster = Store(directory / "store", tower=tower), EmbeddedCluster(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"lives")
        sys.stdin.read()
        return
    os.read(reading, 5)
    print(child, cluster.tower, flush=True)
    threading.Event().wait()
    store.close()


def waits() -> None:
    """A child refuses what a thread of its parent is doing, which holds its locks."""
    tried, over = threading.Event(), threading.Event()

    def publish() -> None:
        while not over.is_set():
            with contextlib.suppress(BackPressureError):
                producer.publish(b"no room")
            tried.set()

    with contextlib.suppress(NotAcknowledgedError), Producer("t", **FULL) as producer:
        producer.publish(b"0")
        thread = threading.Thread(target=publish)
        thread.start()
        tried.wait()
        in_fork(lambda: print(refused(lambda: producer.publish_many([b"of the child"]))))
        over.set()
        thread.join()


class Work:
    """Use an own producer, or the parent's, in a child of multiprocessing."""

    def __init__(self, producer: Producer | None = None) -> None:
        self.producer = producer

    def __call__(self) -> None:
        if self.producer is not None:
            print(refused(lambda: self.producer and self.producer.publish(b"of the child")))
            self.producer.close()
            return
        with Producer("t", tower=tower) as own:
            own.publish(b"own")


def multiprocess() -> None:
    with Producer("t", tower=tower) as producer:
        producer.publish(b"0")
        for work, method in ((Work(producer), "fork"), (Work(), "fork"), (Work(), "spawn")):
            context = multiprocessing.get_context(method)
            child = context.Process(target=work)  # type: ignore[attr-defined]
            child.start()
            child.join(SOON_S)
            assert child.exitcode == 0
        try:
            pickle.dumps(Work(producer))
        except TypeError as error:
            print(error)


if __name__ == "__main__":
    {"uses": uses, "holds": holds, "waits": waits, "multiprocess": multiprocess}[which]()
