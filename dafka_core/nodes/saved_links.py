"""Links that are kept elsewhere than their store, and two stores' links beside each other.

Who may write to a store's disk may compute its links anew, too.  So an operator keeps the newest of
each partition where he may not, in a file; each holds all links before it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from dafka_core.durable_files import replace_file
from dafka_core.errors import ConfigError, StoreError
from dafka_core.flight import limits
from dafka_core.nodes.store_backup import PART, opened
from dafka_core.private_files import OTHERS_READ, mode_within
from dafka_core.security_options import NO_KEYS, KeyFiles
from dafka_core.storage.check_results import Checked, Damage
from dafka_core.storage.link_check import PartitionLink, differences
from dafka_core.storage.storage_errors import translated

VERSION = 1


class SavedLinks(msgspec.Struct, frozen=True):
    """The newest link of each partition that a store had at one time."""

    v: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    store: str
    time: str
    links: tuple[PartitionLink, ...]

    def __post_init__(self) -> None:
        for each in self.links:
            if each.start >= each.end:
                raise ValueError(f"a link of {each.tp} has no records")

    @classmethod
    def of(cls, store: str, keys: KeyFiles = NO_KEYS) -> Self:
        """Those that a store has now, which may run.

        Raises:
            StoreError: there is none, or a disk fails.
            StoreUnreachableError: the store runs, and does not answer.
        """
        time = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        with opened(store, keys) as source:
            parts = limits.parts(source.partitions(), PART)
            found = [link for part in parts for link in source.links(part, newest=True)]
            return cls(VERSION, source.address, time, tuple(found))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Those in a file.

        Raises:
            ConfigError: the file cannot be read, or is none that ``write`` has made.
        """
        try:
            return msgspec.convert(json.loads(path.read_bytes()), cls)
        except (OSError, ValueError) as error:
            why = f"must be a file that 'dafka store verify --save' has written ({error})"
            raise ConfigError("against", str(path), why) from None

    def write(self, path: Path) -> None:
        """Writes them to a file, in the place of one that is there.

        Raises:
            StoreError: the file cannot be written.
        """
        text = f"{json.dumps(msgspec.to_builtins(self))}\n"
        with translated(path.parent):
            replace_file(path, text.encode(), mode_within(path.parent) & OTHERS_READ)

    def check(self, store: str, keys: KeyFiles = NO_KEYS) -> Iterator[Checked]:
        """Compares a store with them, some partitions at a time.

        Raises:
            StoreError: they are another store's.
        """
        with opened(store, keys) as source:
            if source.address != self.store:
                why = f"the file has links of store {self.store}, and this is {source.address}"
                raise StoreError(Path(store), why)
            for part in limits.parts(self.links, PART):
                yield from source.check_saved(part)


def compare(
    store: str, other: str, *, keys: KeyFiles = NO_KEYS
) -> Iterator[tuple[int, list[Damage]]]:
    """What ``differences`` are between two stores, some of the partitions of both at a time."""
    with ExitStack() as stack:
        here, there = (stack.enter_context(opened(each, keys)) for each in (store, other))
        shared = set(there.partitions())
        for part in limits.parts([tp for tp in here.partitions() if tp in shared], PART):
            yield differences(here.links(part, newest=False), there.links(part, newest=False))
