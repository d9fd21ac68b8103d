"""Row 8: bytes that a store's log writes, and its file's size, for single records.

One record for each partition and append, beside the records' bytes. Counted is what LMDB writes to
the system: whole pages. Linux's own count (``write_bytes``) is larger, as it counts the page
cache's whole large folio of a changed page; the disk does not write that. Measured once: neither
varies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, limited, tell
from benchmarks.harness import Bench
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_core.storage.storage_errors import DATA_FILE

ROUNDS = {1: 10_000, 1_000: 200}  # appends by number of partitions: some megabytes and a minute

MAX_WRITTEN = {1: 400, 1_000: 10}
"""Bytes for each one kept, with records of 100 bytes. An append of one record writes six pages: its
own, the row's, the two above, the list of free pages and the meta page."""

MAX_FILE = {1: 2.2, 1_000: 1.5}
"""Bytes for each one kept. With so little in one partition the last merge makes one block, and its
sources remain beside it."""

UNIT = "octets/octet kept"


def run(bench: Bench) -> Iterator[Figure]:
    """Measure bytes written and the file's size, with one partition and with many."""
    for size_bytes in bench.sizes_bytes:
        for partitions, rounds in ROUNDS.items():
            name = f"{partitions:,} partitions" if partitions > 1 else "one partition"
            appends = bench.part(rounds, 5)
            written, file = trickled(bench.directory, partitions, appends, size_bytes)
            tell(f"trickle, {name}, {size_bytes} B: {appends} appends")
            for what, found, most in (("written", written, MAX_WRITTEN), ("file", file, MAX_FILE)):
                label = f"trickle, {name}, {size_bytes} B, {what}"
                yield limited(label, [found], 1.0, UNIT, goal=1 / most[partitions])


def trickled(parent: Path, partitions: int, appends: int, size_bytes: int) -> tuple[float, float]:
    """Return bytes written, and bytes of the file after merging, for each byte of the records."""
    tps = [TopicPartition("trickle", f"{number:032X}") for number in range(partitions)]
    values = Values.of([np.random.default_rng(size_bytes).bytes(size_bytes)])
    kept = partitions * appends * size_bytes
    with tempfile.TemporaryDirectory(dir=parent) as directory, Log(directory) as log:
        before = octets_written()
        for offset in range(appends):
            log.append([RecordBatch(tp, offset, values) for tp in tps])
            while log.small_blocks and log.merge_step():
                pass
        while log.merge_step():
            pass
        return (octets_written() - before) / kept, (
            Path(directory) / DATA_FILE
        ).stat().st_size / kept


def octets_written() -> int:
    """Return the bytes that this process has written."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
