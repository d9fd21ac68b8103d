"""What a check of a log finds, and says that it has looked at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from dafka_core.storage.tables import Tables

ROW: Final = "row"
BLOCK: Final = "block"
HOLE: Final = "hole"
EPOCHS: Final = "epochs"
STAGED: Final = "staged"
ASIDE: Final = "aside"
NOTES: Final = "notes"
UNKNOWN: Final = "unknown"
CHANGED: Final = "changed"
LINKS: Final = "links"
REPLACED: Final = "replaced"
DIFFERENT: Final = "different"
PARTED: Final = "parted"
PAGE: Final = "page"


class Damage(NamedTuple):
    """What is wrong: its kind, the partition's names and an offset (empty, 0 if none), and why.

    The kinds are ``row`` (a partition's row, without which its records are not found), ``block``
    (one that is not what was written), ``hole`` (records that are in no block), ``changed`` (what
    was written is not what it was, checksums and all), ``links`` (those by which that is found are
    not what was written), ``epochs`` (whose the records are), ``staged``, ``aside`` and ``notes``
    (what is kept beside the records), ``unknown`` (blocks that belong to no partition), and
    ``page`` (a page of the file cannot be read: the offset is the file's).

    Of records beside links from elsewhere they are ``changed``, ``replaced`` (the producer's
    history is another one since), ``different`` (between two stores) and ``parted`` (their
    histories are).
    """

    kind: str
    topic: str
    partition: str
    offset: int
    why: str


class Checked(NamedTuple):
    """What one look has checked."""

    partitions: int = 0
    records: int = 0
    blocks: int = 0
    size_bytes: int = 0
    found: tuple[Damage, ...] = ()
    log_format: int = 0
    """The log's, where it was looked at."""
    linked: int = 0
    """Records that are those of their links."""

    def plus(self, other: Checked) -> Checked:
        """Both together."""
        return Checked(
            self.partitions + other.partitions,
            self.records + other.records,
            self.blocks + other.blocks,
            self.size_bytes + other.size_bytes,
            self.found + other.found,
            max(self.log_format, other.log_format),
            self.linked + other.linked,
        )


Look = Callable[[], AbstractContextManager[Tables]]
"""Gives a log's tables as they are when it is called."""
