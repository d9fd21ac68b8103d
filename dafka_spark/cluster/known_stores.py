"""Stores as they were last seen, in a file of this machine, and their answers by Flight.

Spark ends its Python workers after a minute without work: the next batch of a query begins in new
ones, which know nothing.  This is how they find the stores, with a tower or without one.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE, S_ISDIR
from typing import ClassVar, Final

from dafka_core import Reader
from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import DafkaError, InvalidRequestError, TowerNotFoundError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation, this_machine
from dafka_core.model.json_message import JsonMessage
from dafka_core.model.records import (
    Contacts,
    KnownStore,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    merge_heads,
)
from dafka_core.system.files import replace_file
from dafka_spark.cluster import timing


class MeshlessReader(Reader, ABC):
    """In place of a mesh's reader; does not join the mesh, so ``Reader.__init__`` is not run."""

    @abstractmethod
    def _refusal(self) -> DafkaError:
        """Why nothing can be read from a mesh."""

    def contacts(self) -> Contacts:
        """See ``Reader``: no node hears of this one."""
        return Contacts()

    def read(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> Iterator[RecordBatch]:
        """There is no mesh to read from."""
        raise self._refusal()

    def times(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> list[tuple[int, int]]:
        """There is no mesh to ask."""
        raise self._refusal()

    def close(self) -> None:
        """There is nothing to close."""


MAX_FILES: Final = 64
"""Towers of which a machine remembers the stores; those that were written first are forgotten."""

MAX_ASKED: Final = 16
"""Stores asked at the same time."""

_PRIVATE: Final = 0o700

_log = logging.getLogger("dafka_spark")

_written: Final[dict[str, tuple[float, frozenset[StoreLocation]]]] = {}
"""By towers: when this process has written the file, and what."""


class KnownStores(JsonMessage, frozen=True):
    """What the file says: where the stores of some towers were."""

    what: ClassVar[str] = "file of known stores"

    stores: tuple[StoreLocation, ...]


def remember(tower: str, stores: Collection[StoreLocation]) -> None:
    """Writes down where stores are, for processes to come.  Where no file can be, it does not."""
    said, now = frozenset(stores), time.monotonic()
    at, before = _written.get(tower, (0.0, frozenset()))
    if not said or (said == before and now < at + timing.REMEMBER_S):
        return
    with suppress(OSError):
        directory = _directory()
        packed = KnownStores(tuple(sorted(said, key=lambda each: each.store))).packed()
        replace_file(directory / _name(tower), packed, 0o600)
        files = sorted(directory.iterdir(), key=lambda each: each.stat().st_mtime)
        for old in files[:-MAX_FILES]:
            old.unlink()
        _written[tower] = now, said


def remembered(tower: str) -> list[StoreLocation]:
    """Where stores were when a process of this machine has seen them last; perhaps none."""
    with suppress(OSError, InvalidRequestError):
        return list(KnownStores.parse((_directory() / _name(tower)).read_bytes()).stores)
    return []


def told_by(stores: Sequence[StoreLocation], keys: KeyFiles) -> dict[str, StoreLocation]:
    """The stores that these tell of, themselves included, by name; of those that answer."""

    def ask(location: StoreLocation) -> list[StoreLocation]:
        with suppress(DafkaError), StoreClient(location, keys) as client:
            return client.stores(timeout_s=timing.ANSWER_S)
        return []

    if not stores:
        return {}
    with ThreadPoolExecutor(min(len(stores), MAX_ASKED)) as pool:
        return {each.store: each for told in pool.map(ask, stores) for each in told}


class TowerlessReader(MeshlessReader):
    """In place of a mesh's reader while no tower answers: what its stores say by Arrow Flight.

    Raises:
        TowerNotFoundError: none of the stores that are known answers, either.
    """

    def __init__(
        self,
        known: Sequence[StoreLocation],
        missing: TowerNotFoundError,
        keys: KeyFiles,
    ) -> None:
        self._keys = keys
        self._missing = missing
        self._since = time.monotonic()
        self._known = list(known)
        self._before = self.stores()
        if not self.endpoints():
            raise missing
        text = "%s. Stores that were known before go on without it: %s"
        _log.warning(text, missing, ", ".join(self.stores()))

    @property
    def is_old(self) -> bool:
        """Whether to look for a tower again."""
        return time.monotonic() >= self._since + timing.TOWERLESS_S

    def stores(self) -> list[str]:
        """See ``Reader``: those that were told of last."""
        return [each.store for each in self._known]

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """See ``Reader``: where the stores say that they all are."""
        told = told_by(self._known, self._keys)
        if told:
            self._known = [told[store] for store in sorted(told)]
        return {store: each.locations for store, each in told.items()}

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        """See ``Reader``: what the stores that answer have together."""
        infos: list[PartitionInfo] = []
        for location in self._known:
            with suppress(DafkaError), StoreClient(location, self._keys) as client:
                infos += client.heads(topics, timeout_s=timeout_s)
        return [*merge_heads(infos).values()]

    def missing_stores(self, *, timeout_s: float) -> list[KnownStore]:
        """See ``Reader``: those that were known before and that nobody tells of now."""
        there = self.endpoints()
        return [KnownStore(each) for each in self._before if each not in there]

    def _refusal(self) -> DafkaError:
        return self._missing


def _directory() -> Path:
    """The user's own directory for such files.

    Raises:
        OSError: there is none, or it is not the user's alone.
    """
    directory = Path(tempfile.gettempdir()) / f"dafka-{os.getuid()}"
    directory.mkdir(_PRIVATE, exist_ok=True)
    found = directory.lstat()
    if not S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{directory} is not this user's alone")
    return directory


def _name(tower: str) -> str:
    # The machine, too: a tower at a local address is another one elsewhere.
    return f"{sha256(f'{tower} {this_machine()}'.encode()).hexdigest()[:32]}.json"
