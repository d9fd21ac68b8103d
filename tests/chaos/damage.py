"""Table 6: the disk is full, or the database file is damaged.

A full disk: a limit on the store's files, or a small file system that something else fills. The
store must report it; what it acknowledged must exist, and with room again it continues.

Damage: the file of a killed store is truncated or overwritten. Started again it may refuse, with a
sentence that says why, or serve; what it serves must be right, record by record, and what it then
acknowledges must exist after another start.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

from dafka_core.errors import DafkaError
from dafka_core.flight.requests import OffsetsRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition
from tests.chaos.disks import values_on_disk
from tests.chaos.harness import ChaosError, Round, wait_until
from tests.chaos.networks import Process, unshare_works
from tests.chaos.nodes import Node, TowerSite, start_store
from tests.chaos.store_kills import TOPIC, FlightWriter, MeshWriter, Writer, value

ROUNDS = 70
SHORT_ROUNDS = 5

CLEAR = "dafka: store at "  # prefix of a store's sentence about its directory

FILE_SYSTEM_BYTES = 96 << 20
PAGE_BYTES = 4096
READ_TIMEOUT_S = 5.0

END_S = 0.3  # time in which a store that a request kills has ended

REPLACED, NOT_REPLACED = "are replaced by those of store", "are not replaced yet"
"""Parts of a store's messages about damaged records."""

NEW, NEW_RECORDS = "F" * 32, 200

Partitions = dict[str, int]
"""By partition, from which values are made: the number of acknowledged records."""


class TableRound(Round):
    def run(self) -> None:
        self.site = TowerSite(self.directory, self.stack)
        self.log = self.directory / "store.log"
        kinds: list[Callable[[TableRound], None]] = [_limited, _truncated, _overwritten, _flipped]
        kinds += [
            _misplaced,
            _running,
            _filled if unshare_works("-rm") else _limited,
            _one_of_three,
        ]
        kinds[self.number % len(kinds)](self)

    def store(self, kept: Path | None = None, prefix: tuple[str, ...] = ()) -> Node:
        return start_store(kept or self.directory / "store", self.site.tower, self.log, prefix)


# -- full disks ----------------------------------------------------------------------------------


def _limited(it: TableRound) -> None:
    def fill(store: Node) -> None:
        held = (it.directory / "store" / "data.mdb").stat().st_size
        store.limit_file(held + it.chance.randrange(300_000))

    _full(it, fill, lambda: None, it.directory / "store", it.store)
    it.chaos.fault("disk full, a limit on files")


def _filled(it: TableRound) -> None:
    mounted = it.directory / "mounted"
    mounted.mkdir()
    with contextlib.ExitStack() as stack:
        holder = Process(
            stack,
            ["unshare", "-rm"],
            f"mount -t tmpfs -o size={FILE_SYSTEM_BYTES} chaos {mounted}",
        )
        seen = Path(f"/proc/{holder.pid}/root{mounted}")
        prefix = ("nsenter", "-t", str(holder.pid), "-U", "-m", "--preserve-credentials")
        ballast = seen / "ballast"

        def fill(_: Node) -> None:
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(PAGE_BYTES)):
                    continue

        _full(
            it, fill, ballast.unlink, seen / "store", partial(it.store, mounted / "store", prefix)
        )
    it.chaos.fault("disk full, no space on its file system")


def _full(
    it: TableRound,
    fill: Callable[[Node], None],
    clear: Callable[[], None],
    kept: Path,
    store_on: Callable[[], Node],
) -> None:
    """A store whose disk becomes full at some moment, and then has room again."""
    mesh = MeshWriter("mesh", str(it.chance.random()), it.site.tower)
    putter = FlightWriter("put", str(it.chance.random()))
    writers: list[Writer] = [mesh, putter]
    try:
        with store_on() as store:
            putter.found(store)
            for writer in writers:
                writer.start()
            wait_until(lambda: all(w.acknowledged() > 100 for w in writers), "acknowledgements")
            time.sleep(it.chance.uniform(0, 0.5))
            fill(store)
            wait_until(lambda: "the disk is full" in it.log.read_text(), "a full disk")
            acknowledged = [writer.acknowledged() for writer in writers]
            store.kill()
        if "Traceback" in (said := it.log.read_text()):
            raise ChaosError(f"on a full disk the store failed: {said[-500:]}")
        clear()
        on_disk = values_on_disk(kept)
        for writer, least in zip(writers, acknowledged, strict=True):
            it.chaos.compare(
                f"{writer.name} on a disk that was full",
                [value(writer.name, offset) for offset in range(least)],
                on_disk.get(TopicPartition(TOPIC, writer.partition), []),
                [value(writer.name, offset) for offset in range(writer.sent())],
            )
        with store_on() as store:
            putter.found(store)
            for writer in writers:
                writer.finish()
            _check_consumer(it, {writer.name: writer.acknowledged() for writer in writers})
    finally:
        for each in (mesh, putter):
            each.close()


def _check_consumer(it: TableRound, held: Partitions) -> None:
    everything = [value(name, offset).decode() for name in held for offset in range(held[name])]
    it.chaos.outcome.records += len(everything)
    listener = it.site.listener(TOPIC)
    listener.wait_for(len(everything))
    it.chaos.compare("a consumer", everything, listener.values())


# -- damage --------------------------------------------------------------------------------------


def _truncated(it: TableRound) -> None:
    def damage(data: Path) -> None:
        os.truncate(data, it.chance.randrange(data.stat().st_size))

    _damaged(it, "file truncated", damage)


def _overwritten(it: TableRound) -> None:
    def damage(data: Path) -> None:
        for _ in range(it.chance.randint(1, 4)):
            _write(data, _place(it, data), it.chance.randbytes(it.chance.randint(16, 6000)))

    _damaged(it, "file overwritten in places", damage)


def _flipped(it: TableRound) -> None:
    def damage(data: Path) -> None:
        _flip_bits(it, data, it.chance.randint(1, 8))

    _damaged(it, "bits flipped", damage)


def _misplaced(it: TableRound) -> None:
    def damage(data: Path) -> None:
        pages = [
            location // PAGE_BYTES * PAGE_BYTES for location in (_place(it, data), _place(it, data))
        ]
        with data.open("rb") as file:
            file.seek(pages[0])
            page = file.read(PAGE_BYTES)
        _write(data, pages[1], page)

    _damaged(it, "page written in another's place", damage)


def _running(it: TableRound) -> None:
    """Overwrite the file of a store that runs and serves reads."""
    with it.store() as store:
        held = _fill(it, store)
        data = it.directory / "store" / "data.mdb"
        _write(data, _place(it, data), it.chance.randbytes(it.chance.randint(16, 6000)))
        it.chaos.fault("file overwritten in places, store running")
        _check_serving(it, store, held)


def _one_of_three(it: TableRound) -> None:
    """Flip bits of one of three running stores, from which consumers then read everything."""
    others = [it.directory / name for name in ("second", "third")]
    with it.store() as store, it.store(others[0]) as second, it.store(others[1]) as third:
        held = _fill(it, store)
        for other in (second, third):
            with _client(other) as client:
                wait_until(lambda: _ends(client) == held, "a replica")
        _flip_bits(it, it.directory / "store" / "data.mdb", it.chance.randint(1, 50))
        it.chaos.fault("bits flipped, one of three stores running")
        _check_consumer(it, held)
        _heal(it, store, held)
        _check_serving(it, store, held)


def _heal(it: TableRound, store: Node, held: Partitions) -> None:
    """Read everything, and wait until the store has replaced what is damaged, or says why not."""
    with contextlib.suppress(DafkaError), _client(store) as client:
        for name, end in held.items():
            with contextlib.suppress(DafkaError):
                _read(it, client, name, end)
        wait_until(
            lambda: not _damaged_count(client) or NOT_REPLACED in it.log.read_text(),
            "damaged records are replaced, or the store says why not",
        )
    if REPLACED in it.log.read_text():
        it.chaos.add("damaged records replaced")


def _damaged_count(client: StoreClient) -> int:
    return client.ask(READ_TIMEOUT_S, OffsetsRequest(()))[0].damaged


def _ends(client: StoreClient) -> Partitions:
    return {info.partition: info.end for info in client.heads([TOPIC], timeout_s=READ_TIMEOUT_S)}


def _flip_bits(it: TableRound, data: Path, count: int) -> None:
    for _ in range(count):
        location = _place(it, data)
        with data.open("rb") as file:
            file.seek(location)
            before = file.read(1)[0]
        _write(data, location, bytes([before ^ (1 << it.chance.randrange(8))]))


def _damaged(it: TableRound, kind: str, damage: Callable[[Path], None]) -> None:
    with it.store() as store:
        held = _fill(it, store)
        store.kill()
    damage(it.directory / "store" / "data.mdb")
    shutil.copy(it.directory / "store" / "data.mdb", it.directory / "damaged.mdb")
    it.chaos.fault(kind)
    with it.store() as store:
        if store.wait_started():
            _check_serving(it, store, held)
        else:
            _check_end(it, store.end())


def _fill(it: TableRound, store: Node) -> Partitions:
    """Return large and small partitions, of large and small blocks."""
    held: Partitions = {}
    with _client(store) as client:
        for number in range(it.chance.randint(3, 40)):
            name = f"{number:032X}"
            for _ in range(it.chance.randint(1, 4)):
                count = it.chance.choice((1, 3, 40, 400))
                _put(client, name, held.get(name, 0), count)
                held[name] = held.get(name, 0) + count
    return held


def _client(store: Node) -> StoreClient:
    return StoreClient(store.location())


def _put(client: StoreClient, name: str, start: int, count: int) -> None:
    values = [value(name, offset) for offset in range(start, start + count)]
    with client.put(TopicPartition(TOPIC, name), start, timeout_s=READ_TIMEOUT_S) as put:
        put.write(pa.array(values, pa.binary()))
        put.finish(READ_TIMEOUT_S)


def _place(it: TableRound, data: Path) -> int:
    """Return a position in the file: as often in its small trees as in its records."""
    content = data.read_bytes()
    trees = [
        page
        for page in range(0, len(content), PAGE_BYTES)
        if content[page + 10] & 0b1011 and content[page : page + 8] == _number(page)
    ]
    if trees and it.chance.random() < 0.5:
        return it.chance.choice(trees) + it.chance.randrange(PAGE_BYTES)
    return it.chance.randrange(len(content))


def _number(page: int) -> bytes:
    return (page // PAGE_BYTES).to_bytes(8, "little")


def _write(data: Path, location: int, content: bytes) -> None:
    with data.open("r+b") as file:
        file.seek(location)
        file.write(content)


def _check_serving(it: TableRound, store: Node, held: Partitions) -> None:
    """Check everything that the store serves, and that it keeps new records."""
    with _client(store) as client:
        try:
            ends = _ends(client)
        except DafkaError:
            _refused(it, store, "heads refused")
            return
        if ends != held:
            others = [name for name in held if ends.get(name) != held[name]]
            raise ChaosError(
                f"without a word {len(others)} partitions have other ends: {others[:3]}"
            )
        for name, end in ends.items():
            try:
                _read(it, client, name, end)
            except DafkaError:
                _refused(it, store, "reads refused")
        taken = False
        with contextlib.suppress(DafkaError):
            _put(client, NEW, 0, NEW_RECORDS)
            taken = True
    if not store.running:
        _check_end(it, store.end())
    store.kill()
    with it.store() as again:
        if not again.wait_started():
            _check_end(it, again.end())
        elif taken:
            with _client(again) as client:
                _read(it, client, NEW, NEW_RECORDS)


def _refused(it: TableRound, store: Node, what: str) -> None:
    """Check an error that came instead of records: it must be clear if the store has ended."""
    it.chaos.add(what)
    time.sleep(END_S)
    if not store.running:
        _check_end(it, store.end())


def _read(it: TableRound, client: StoreClient, name: str, end: int) -> None:
    at = 0
    for part in client.read(
        TopicPartition(TOPIC, name),
        0,
        end,
        times=False,
        max_records=1000,
        max_bytes=1 << 20,
        timeout_s=READ_TIMEOUT_S,
    ):
        found = part.values.to_list()
        wanted = [value(name, offset) for offset in range(at, at + len(found))]
        it.chaos.compare(f"partition {name} from {at} on", wanted, found)
        if wanted != found:
            raise ChaosError(f"partition {name} from {at} on: records out of order")
        at += len(found)
        it.chaos.outcome.records += len(found)


def _check_end(it: TableRound, code: int) -> None:
    said = it.log.read_text()
    if code < 0:
        raise ChaosError(f"the store was killed by signal {-code}: {said[-300:]}")
    if code != 1 or CLEAR not in said or "Traceback" in said:
        raise ChaosError(f"the store ended with {code}: {said[-500:]}")
    it.chaos.add("stores ended")
