"""Backups of a running or stopped store, their restoration and verification, and saved links.

A running store is asked over Arrow Flight: only its own process opens its directory.  Functions
here raise StoreError for a store that does not exist and for a disk that fails, and
StoreUnreachableError for a store that runs and does not answer.
"""

from __future__ import annotations

import datetime as dt
import mmap
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final, Self

from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import ConfigError, InvalidRequestError, StoreError
from dafka_core.flight import limits
from dafka_core.flight.backup_requests import (
    BackupRequest,
    CheckRequest,
    LinksRequest,
    entries_of,
)
from dafka_core.flight.grpc_workarounds import accepts
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import (
    StoreLocation,
    host_of,
    socket_path,
    this_machine,
    unix_location,
)
from dafka_core.model.json_message import JsonMessage
from dafka_core.model.records import TopicPartition
from dafka_core.nodes.store_identity import address_of, log_of, new_identity
from dafka_core.storage import Log
from dafka_core.storage.backup import (
    Backup,
    Entry,
    Known,
    Manifest,
    entries,
    restored,
    write_backup,
)
from dafka_core.storage.log_check import (
    PAGE,
    Checked,
    Damage,
    PartitionLink,
    check,
    check_blocks,
    check_saved,
    differences,
    links_of,
)
from dafka_core.storage.open_environment import faults_noted
from dafka_core.storage.storage_errors import BACKUP_MANIFEST, DATA_FILE, translated
from dafka_core.system.distribution import this_version
from dafka_core.system.files import OTHERS_READ, mode_within, replace_file

PATIENCE_S: Final = 300.0  # timeout without data of a backup: the store's disk may be slow
ANSWER_S: Final = 20.0  # timeout for a store's location and contents
CHECK_S: Final = 86_400.0  # timeout for a store's check of a thousand partitions
PART: Final = 100  # partitions in one request to a running store
MANIFEST: Final = "manifest"  # damage kind: a backup's file differs from its manifest


Advance = Callable[[int], None]  # receives the progress since the last call


def back_up(
    store: str,
    directory: Path,
    previous: Backup | None = None,
    advance: Advance = lambda _: None,
    keys: KeyFiles = NO_KEYS,
) -> Manifest:
    """Back a store up into a directory, which is complete afterwards or does not exist.

    Args:
        store: its directory, or the URI of its Flight service.
        previous: an earlier backup of it; only newer records are copied.
        advance: receives the number of bytes copied.
        keys: credentials for a running store.

    Raises:
        StoreError: the directory is not empty, or the earlier backup is damaged or another store's.
    """
    known: list[Known] = []
    if previous is not None:
        previous.chain()
        previous.check_file()
        known = previous.known()
        if len(known) > limits.MAX_KNOWN:
            why = (
                f"it has {len(known)} partitions, and a backup continues one with at most "
                f"{limits.MAX_KNOWN}: take a complete one"
            )
            raise StoreError(previous.directory, why)

    def advancing(found: Iterator[Entry]) -> Iterator[Entry]:
        for entry in found:
            advance(len(entry.value))
            yield entry

    with opened(store, keys) as source:
        if previous is not None and previous.manifest.store != source.address:
            why = f"it is of store {previous.manifest.store}, and this is store {source.address}"
            raise StoreError(previous.directory, why)
        with closing(source.entries(known)) as found:
            return write_backup(
                directory, advancing(found), store=source.address, previous=previous
            )


def restore(backup: Path, directory: Path, advance: Advance = lambda _: None) -> str:
    """Create a store's directory from a backup, and return its new address.

    Everything is read again before the directory gets its name; ``advance`` receives partitions.
    Raises StoreError if the directory is not empty, or a backup is damaged or missing.
    """
    found: list[Damage] = []
    with restored(Backup(backup).chain(), directory) as made:
        with Log(made) as log:
            for each in check(log.snapshot):
                advance(each.partitions)
                found += each.found
        if found:
            why = f"{len(found)} parts of it are damaged, such as: {found[0].why}"
            raise StoreError(backup, why)
        return new_identity(made)


def verify(store: str, keys: KeyFiles = NO_KEYS) -> Iterator[Checked]:
    """Read everything in a store or a backup, and yield the damage, a part at a time."""
    if not (Path(store) / BACKUP_MANIFEST).exists():
        with opened(store, keys, unchecked=True) as source:
            yield from source.check()
        return
    for each in Backup(Path(store)).chain():
        try:
            each.check_file()
            if each.manifest.previous:
                with each.reading() as tables:
                    yield from check_blocks(tables)
            else:
                yield from check(each.reading)
        except StoreError as error:
            yield Checked(found=(Damage(MANIFEST, "", "", 0, str(error)),))


@contextmanager
def opened(
    store: str, keys: KeyFiles = NO_KEYS, *, unchecked: bool = False
) -> Iterator[_RunningStore | _StoppedStore]:
    """Open a running or stopped store; raise ConfigError if its name is invalid."""
    directory = Path(store)
    path = socket_path(directory)
    if "://" in store:
        if host_of(store) is None:
            raise ConfigError("store", store, "must be a directory, or like grpc://HOST:PORT")
        with StoreClient(StoreLocation("", (store,)), keys) as client:
            location = client.describe(timeout_s=ANSWER_S).found_at([store])
    elif path is not None and Path(path).exists() and accepts(uri := unix_location(path)):
        location = StoreLocation(address_of(directory), (uri,), "", this_machine())
    else:
        with log_of(store, unchecked=unchecked) as log:
            yield _StoppedStore(log)
        return
    with StoreClient(location, keys) as client:
        yield _RunningStore(location.store, client)


class _RunningStore:
    def __init__(self, address: str, client: StoreClient) -> None:
        self.address = address
        self._client = client

    def entries(self, known: Sequence[Known]) -> Generator[Entry]:
        """Yield the entries for a backup."""
        rows = tuple((*each,) for each in known)
        ticket = BackupRequest(known=rows, store=self.address).checked().packed()
        return self._client.get(ticket, entries_of, PATIENCE_S)

    def check(self) -> Iterator[Checked]:
        """Check the store's log."""
        for part in [(), *limits.parts(self.partitions(), PART)]:
            yield from self._client.ask(CHECK_S, CheckRequest(part))

    def partitions(self) -> list[TopicPartition]:
        return [head.tp for head in self._client.heads(None, timeout_s=ANSWER_S)]

    def links(self, part: Sequence[TopicPartition], *, newest: bool) -> list[PartitionLink]:
        """Return the links of some partitions, or their newest ones only."""
        request = LinksRequest(tuple(part), newest)
        found = self._client.ask(PATIENCE_S, request)
        return [link for answer in found for link in answer.links]

    def check_saved(self, saved: Sequence[PartitionLink]) -> Iterator[Checked]:
        """Compare the records with saved links."""
        yield from self._client.ask(CHECK_S, CheckRequest(saved=tuple(saved)))


class _StoppedStore:
    """A store with the methods of a running one, by its open log."""

    def __init__(self, log: Log) -> None:
        self.address = address_of(log.directory)
        self._log = log
        self._tables = log.snapshot

    def entries(self, known: Sequence[Known]) -> Generator[Entry]:
        facts = {"dafka": this_version()}
        with self._tables() as tables:
            yield from entries(tables, {each.id: each for each in known}, facts)

    def check(self) -> Iterator[Checked]:
        with faults_noted(self._log.directory / DATA_FILE) as faults:
            yield from check(self._tables)
        begins = sorted(at for at in faults if at - mmap.PAGESIZE not in faults)
        yield Checked(found=tuple(Damage(PAGE, "", "", at, faults[at]) for at in begins))

    def partitions(self) -> list[TopicPartition]:
        return [each.tp for each in self._log.partitions()]

    def links(self, part: Sequence[TopicPartition], *, newest: bool) -> list[PartitionLink]:
        return [link for tp in part for link in links_of(self._tables, tp, newest=newest)]

    def check_saved(self, saved: Sequence[PartitionLink]) -> Iterator[Checked]:
        return (check_saved(self._tables, each) for each in saved)


# Links saved outside their store, and two stores' links compared.
#
# An attacker who can write to a store's disk can compute its links again, too. So an operator saves
# the newest link of each partition in a file elsewhere; each covers all links before it.


class SavedLinks(JsonMessage, frozen=True):
    """The newest link of each partition of a store at one time."""

    store: str
    time: str
    links: tuple[PartitionLink, ...]

    @classmethod
    def of(cls, store: str, keys: KeyFiles = NO_KEYS) -> Self:
        """Return the links of a running or stopped store."""
        time = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        with opened(store, keys) as source:
            parts = limits.parts(source.partitions(), PART)
            found = [link for part in parts for link in source.links(part, newest=True)]
            return cls(source.address, time, tuple(found))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read links from a file; raise ConfigError if ``write`` did not make it."""
        try:
            found = cls.parse(path.read_bytes())
            for each in found.links:
                if each.start >= each.end:
                    raise ValueError(f"a link of {each.tp} has no records")
        except (OSError, ValueError, InvalidRequestError) as error:
            why = f"must be a file that 'dafka store verify --save' has written ({error})"
            raise ConfigError("against", str(path), why) from None
        return found

    def write(self, path: Path) -> None:
        """Write them to a file, replacing it."""
        with translated(path.parent):
            replace_file(path, self.packed() + b"\n", mode_within(path.parent) & OTHERS_READ)

    def check(self, store: str, keys: KeyFiles = NO_KEYS) -> Iterator[Checked]:
        """Compare a store with them in steps; StoreError if they are another store's."""
        with opened(store, keys) as source:
            if source.address != self.store:
                why = f"the file has links of store {self.store}, and this is {source.address}"
                raise StoreError(Path(store), why)
            for part in limits.parts(self.links, PART):
                yield from source.check_saved(part)


def compare(
    store: str, other: str, *, keys: KeyFiles = NO_KEYS
) -> Iterator[tuple[int, list[Damage]]]:
    """Yield the ``differences`` between two stores, some common partitions at a time."""
    with ExitStack() as stack:
        here, there = (stack.enter_context(opened(each, keys)) for each in (store, other))
        shared = set(there.partitions())
        for part in limits.parts([tp for tp in here.partitions() if tp in shared], PART):
            yield differences(here.links(part, newest=False), there.links(part, newest=False))
