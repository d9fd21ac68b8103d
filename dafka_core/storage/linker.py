"""Creates links (``links.py``) for a log's records, in small steps, beside appends and merging.

An open link is replaced by one over all its records when half as many have arrived as it has, or
when some have waited for a while.  So each record is read three times at most, in blocks that have
mostly been merged by then, and nothing must be remembered over restarts.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage.block import Block
from dafka_core.storage.environment import Environment
from dafka_core.storage.links import GENESIS, Link, LinkDigest, life_at
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.tables import Tables

SCAN_INTERVAL_S: Final = 2.0  # interval of checks for changes
TAIL_S: Final = 300.0  # time that few records wait for their link: creating it reads up to 16 MiB
SCAN_SHARE: Final = 0.05  # the largest share of the time for checks, if very many partitions change

STEP_BYTES: Final = 32 << 20
STEP_PARTITIONS: Final = 256
"""Limits of one step, in bytes and partitions: their links are one write to disk."""

_log = logging.getLogger("dafka.store")


class Linker:
    """Creates the links of one log.

    For one thread, which calls ``step`` repeatedly.  Links of records that were read before records
    were set aside are not written afterwards.
    """

    def __init__(self, env: Environment) -> None:
        self.made = 0  # number of links created or replaced
        # Partitions with changed records; they get no more links while they have such records.
        self.wrong = set[TopicPartition]()
        self._env = env
        self._changes_seen = -1  # unknown: it scans all partitions first
        self._scan_due_s = float("-inf")  # the time of the next check
        self._tails: dict[TopicPartition, float] = {}  # since when partitions wait
        self._due: deque[TopicPartition] = deque()

    def step(self) -> bool:
        """Create some links, or search for partitions that need some; return False if idle.

        Raises StoreError for a damaged block, or a failing disk; the block's partition is skipped
        until it changes.
        """
        if not self._due:
            started_s = time.monotonic()
            if started_s < self._scan_due_s:
                return False
            self._scan(started_s)
            took_s = time.monotonic() - started_s
            self._scan_due_s = started_s + max(SCAN_INTERVAL_S, took_s / SCAN_SHARE)
            return bool(self._due)
        failed = None
        made: dict[TopicPartition, tuple[int, list[Link]]] = {}
        size_bytes = 0
        while self._due and size_bytes < STEP_BYTES and len(made) < STEP_PARTITIONS:
            tp = self._due.popleft()
            try:
                with self._env.reading() as tables:
                    made[tp] = self._links(tables, tp)
            except StoreError as error:
                failed = error
                break
            size_bytes += sum(each.size_bytes for each in made[tp][1])

        def write(tables: Tables) -> list[TopicPartition]:
            """Write the links; return the partitions with records that were set aside since."""
            return [tp for tp, links in made.items() if not _put(tables, tp, *links)]

        replaced = [*made]
        try:
            replaced = self._env.write(write)
        finally:
            self._due.extend(replaced)
        self.made += sum(len(links) for tp, (_, links) in made.items() if tp not in replaced)
        if failed is not None:
            raise failed
        return True

    def _scan(self, now_s: float) -> None:
        changes = self._env.changes
        number, changed = changes.number, changes.since(self._changes_seen, None)
        waiting, self._tails = self._tails, {}
        with self._env.reading() as tables:
            if changed is None:
                changed = [row.tp for row in tables.all_rows()]
            for tp in {*changed, *waiting}:
                row = tables.visible_row(tp)
                last = row and tables.links.last(row.id)
                start, end = (last.start, last.end) if last else (0, 0)
                if row is None or row.earliest >= end:
                    self.wrong.discard(tp)  # the changed records are gone
                if row is None or row.end == end or tp in self.wrong:
                    continue
                since_s = waiting.get(tp, now_s)
                if 2 * abs(row.end - end) >= end - start or now_s - since_s >= TAIL_S:
                    self._due.append(tp)
                else:
                    self._tails[tp] = since_s
        self._changes_seen = number

    def _links(self, tables: Tables, tp: TopicPartition) -> tuple[int, list[Link]]:
        row = tables.visible_row(tp)
        if row is None:
            return 0, []
        history = tables.lives.history(row)
        last = tables.links.last(row.id)
        if last and last.end > row.end:
            self._report_changed(tp, last)
            return row.id, []
        grown = None
        start, chain = row.earliest, GENESIS
        if last and not last.is_full and last.start >= row.earliest:
            grown, previous = last, tables.links.last(row.id, last.start)
            start, chain = last.start, previous.chain if previous else GENESIS
        elif last:
            start, chain = max(last.end, row.earliest), last.chain
        records, links, size_bytes = LinkedRecords(tables, row, start), list[Link](), 0
        while start < row.end and size_bytes < STEP_BYTES:
            digest = LinkDigest(tp, start, chain)
            if grown:
                records.fill(digest, grown.end)
                if digest.link(grown.life) != grown:
                    self._report_changed(tp, grown)
                    return row.id, []
                grown = None
            records.fill(digest, row.end)
            links.append(digest.link(life_at(history, digest.end)))
            start, chain = digest.end, links[-1].chain
            size_bytes += digest.size_bytes
        if start < row.end:
            self._due.append(tp)
        return row.id, links

    def _report_changed(self, tp: TopicPartition, link: Link) -> None:
        self.wrong.add(tp)
        text = (
            "%(partition)s: records %(start)d to %(end)d, or their link, were changed in the file; "
            "'dafka store verify' has details"
        )
        facts = {"partition": str(tp), "start": link.start, "end": link.end - 1}
        _log.error(text, facts, extra={"event": "records_changed"})


def _put(tables: Tables, tp: TopicPartition, partition_id: int, links: list[Link]) -> bool:
    """Write a partition's links; return False, without effect, if it has other records by now."""
    row = tables.row(tp)
    if links and (
        row is None
        or row.id != partition_id
        or row.end < links[-1].end
        or life_at(tables.lives.history(row), links[-1].end) != links[-1].life
    ):
        return False
    for link in links:
        tables.links.put(partition_id, link)
    return True


class LinkedRecords:
    """A partition's records from an offset on, for digests; each block is read once."""

    def __init__(self, tables: Tables, row: PartitionRow, start: int) -> None:
        # Not copied: no block is kept.
        self._batches = tables.batches(row, start, row.end, Block.parse)
        self._rest: RecordBatch | None = None

    def fill(self, made: LinkDigest, end: int, *, full: bool = True) -> None:
        """Add records up to an offset; with ``full`` at most those of a full link."""
        while made.end < end and not (full and made.is_full):
            batch = self._rest or next(self._batches)
            stop = min(end, made.reach(batch) if full else batch.end)
            made.add(batch.between(batch.offset, stop))
            self._rest = batch.between(stop, batch.end) if stop < batch.end else None
