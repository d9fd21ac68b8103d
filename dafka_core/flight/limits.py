"""Limits on one Flight request, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from dafka_core.storage.block import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS

MAX_REQUEST_BYTES: Final = 8_192
"""A descriptor or criteria: two names of 255 bytes, each byte escaped, and the rest."""

MAX_RANGES: Final = 1_000
"""Ranges of one get: a batch of it names the partition of each of its parts."""

MAX_TICKET_BYTES: Final = 4 << 20  # a ticket of this number of ranges, with the longest names

MAX_KNOWN: Final = 50_000
"""Partitions of an earlier backup in a ticket, within ``MAX_TICKET_BYTES``."""

MAX_CHECKED: Final = 1_000  # partitions checked by one request

MAX_BACKUPS: Final = 2
"""Backups at one time: each pins a view of the log, and pages freed since, until it ends."""

MAX_ACTION_BYTES: Final = 1 << 20
"""An action's body lists topics or partitions: some thousands with the longest names."""

MAX_NAMES: Final = 10_000  # topics of a request for heads

MAX_TIMES: Final = 1_000
"""Partitions of a request for offsets by timestamp: each is a search that reads some blocks."""

MAX_TRANSACTIONS: Final = 10_000
"""Partitions of a request for transactions, of a commit or of a discard: several times the tasks of
a job.  A commit is one txn of LMDB."""

MAX_TRANSACTIONS_BYTES: Final = 8 << 20  # the body of such a request, with names of 255 characters

HEADS_PER_RESULT: Final = 10_000
"""Entries in one result of an action, which stays a small message; the next result has the rest."""

MAX_BATCH_RECORDS: Final = MAX_BLOCK_RECORDS
MAX_BATCH_BYTES: Final = MAX_BLOCK_BYTES
"""The size limit of a batch, got or put, and of what a request may ask for: a block of the log,
since one stream may keep one in memory.  A larger record has a batch to itself."""

MAX_PUT_RECORD_BYTES: Final = 256 << 20
"""The default limit of nodes of the mesh: they must be able to receive every record."""

MAX_UNDER_WAY_BYTES: Final = 32 << 20
"""Values of one put in the disk's queue: enough that the disk always has the next batch."""

MAX_GETS: Final = 64  # streams read at one time: each may keep a block in memory and holds a thread

MAX_PUTS: Final = 32
"""Streams written at one time: each holds a thread and one batch, beside the queued ones."""

MAX_WAITS: Final = 64  # waiting actions at one time: each holds a thread

MAX_WATCHES: Final = 256
"""Watching actions at one time: each holds a thread.  Clients beyond the limit poll instead, so
there is no queue."""

MAX_CURSOR_CHARS: Final = 100  # of a cursor, which only the store that made it can read
MAX_COMMITS: Final = 64  # actions that commit or discard at one time: each holds a thread

QUEUE_S: Final = 30.0
"""Time in the queue for a stream: less than our clients wait for a store, so that they learn the
reason."""

MAX_QUEUED: Final = 256  # length of the queue of each kind: each entry holds a thread

IDLE_S: Final = 300.0
"""Timeout of a client that neither receives nor sends: longer than a live Spark task spends on one
batch, or on creating the next."""

BACKUP_IDLE_S: Final = 60.0
"""The timeout of a backup, which pins a view of the log: its client only waits for a disk."""

SLOWEST_BYTES_S: Final = 64 << 10
"""A client that receives a batch gets additional time, as if on a line of this speed: the store
cannot see which part of a batch has left."""

MAX_PARKED: Final = 32
"""Idle streams whose connection is shared with other streams; each holds a thread and a batch.
With one more the connections are broken, with all their streams."""

MAX_LEASED_BLOCKS: Final = 1_024
MAX_LEASED_BYTES: Final = 128 << 20
"""The size of one lease: a reader copies it in less than a second, and rarely asks the store.
LMDB's Python binding touches each page of a block when the store looks up its position; for much
more, from a slow disk and for several readers at once, that would take longer than their timeout.
"""

MAX_WAIT_S: Final = 3_600  # the longest wait of one action
MAX_LOCATIONS_LISTED: Final = 1_000  # stores named in one answer

MAX_MESSAGE_CHARS: Final = 1_000
"""An error's sentence travels in a header of HTTP/2, where space is limited."""

T = TypeVar("T")


def parts(items: Sequence[T], most: int) -> Iterator[tuple[T, ...]]:
    """Split items for several requests."""
    return (tuple(items[start : start + most]) for start in range(0, len(items), most))
