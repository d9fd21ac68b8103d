"""Limits on what one Flight request may ask, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from dafka_core.model.where import MAX_CHARACTERS
from dafka_core.storage.block import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS

MAX_REQUEST_BYTES: Final = 8_192
"""A ticket, descriptor or criteria: two names of 255 octets, each octet escaped, and the rest."""

MAX_RANGES: Final = 1_000
"""Ranges of one get: a batch of it names the partition of each of its parts."""

MAX_MANY_BYTES: Final = 4 << 20
"""A ticket of so many ranges, with the longest names."""

MAX_KNOWN: Final = 50_000
"""Partitions of an earlier backup that a ticket names: so many fit into ``MAX_MANY_BYTES``."""

MAX_CHECKED: Final = 1_000
"""Partitions that one request has checked."""

MAX_BACKUPS: Final = 2
"""Backups at one time: each keeps a moment of the log, and what is freed since, until it ends."""

MAX_WHERE_BYTES: Final = MAX_REQUEST_BYTES + 6 * MAX_CHARACTERS
"""A ticket with a condition of so many characters, each escaped."""

MAX_ACTION_BYTES: Final = 1 << 20
"""An action's body lists topics or partitions: some thousands with the longest names."""

MAX_NAMES: Final = 10_000
"""Topics of a request for heads."""

MAX_TIMES: Final = 1_000
"""Partitions of a request for offsets by timestamp: each is a search that reads some blocks."""

MAX_TRANSACTIONS: Final = 10_000
"""Partitions of a request for transactions, of a commit or of a discard: several times the tasks
of a job.  A commit is one txn of LMDB."""

MAX_TRANSACTIONS_BYTES: Final = 8 << 20
"""The body of such a request, with names of 255 characters."""

HEADS_PER_RESULT: Final = 10_000
"""Entries in one result of an action, which stays a small message; the next result has the rest."""

MAX_BATCH_RECORDS: Final = MAX_BLOCK_RECORDS
MAX_BATCH_BYTES: Final = MAX_BLOCK_BYTES
"""What a batch has at most, got or put, and what a request may ask for at most: a block of the log,
since that is what one stream may keep in memory.  A larger record has a batch to itself."""

MAX_PUT_RECORD_BYTES: Final = 256 << 20
"""What nodes of the mesh take at most by default: a record that is put must reach them, too."""

MAX_UNDER_WAY_BYTES: Final = 32 << 20
"""Values of one put on their way to the disk: enough that the disk always has the next batch."""

MAX_GETS: Final = 64
"""Streams read at one time: each may keep a block in memory and holds a thread."""

MAX_PUTS: Final = 32
"""Streams written at one time: each holds a thread and has a batch in hand, beside what all of
them together have on the way to the disk."""

MAX_WAITS: Final = 64
"""Actions that wait at one time: each holds a thread."""

MAX_WATCHES: Final = 256
"""Actions that watch for changes at one time: each holds a thread.  Who finds as many asks now and
then instead, so there is no line."""

MAX_CURSOR_CHARS: Final = 100
"""Of a cursor, which only the store that made it can read."""

MAX_COMMITS: Final = 64
"""Actions that commit or discard at one time: each holds a thread."""

QUEUE_S: Final = 30.0
"""How long who finds as many streams as there may be waits for its turn: less than our clients wait
for a store, so that they are told why."""

MAX_QUEUED: Final = 256
"""How many wait for their turn, of each kind: each holds a thread."""

IDLE_S: Final = 300.0
"""How long a client may take nothing, or send nothing, before its stream ends: longer than a Spark
task that is alive spends on one batch, or on making the next."""

BACKUP_IDLE_S: Final = 60.0
"""The same of a backup, for which the store keeps a moment of its log: its client may have to wait
for a disk, and for nothing else."""

SLOWEST_BYTES_S: Final = 64 << 10
"""A client that takes a batch has so much longer as the batch takes on a line like this: what of a
batch has left cannot be seen."""

MAX_PARKED: Final = 32
"""Idle streams whose connection lasts as other streams go through it; each holds a thread and a
batch.  With one more the connections are broken, whatever goes through them."""

MAX_LEASED_BLOCKS: Final = 1_024
MAX_LEASED_BYTES: Final = 128 << 20
"""What one lease covers: a reader has it in less than a second, and asks the store seldom.  LMDB's
Python binding touches each page of a block when the store looks where it lies; of much more, from a
slow disk and for several readers at once, that would take longer than they wait."""

MAX_WAIT_S: Final = 3_600
"""How long one action may wait."""

MAX_LOCATIONS_LISTED: Final = 1_000
"""Stores that one answer may name."""

MAX_MESSAGE_CHARS: Final = 1_000
"""An error's sentence travels in a header of HTTP/2, where there is little room."""

T = TypeVar("T")


def parts(items: Sequence[T], most: int) -> Iterator[tuple[T, ...]]:
    """What is too much for one request, cut."""
    return (tuple(items[start : start + most]) for start in range(0, len(items), most))
