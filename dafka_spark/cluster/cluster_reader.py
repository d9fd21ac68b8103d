"""Readers of a cluster's stores: over the mesh, or by Arrow Flight without a mesh.

The stores of each mesh are in a file of this machine.  Spark ends its Python workers after a minute
without work; those of the next batch find the stores by this file, even while no tower answers.

A query that finds no tower or no store at its start gets the diagnosis of ``dafka doctor``.  A
problem that waiting cannot solve fails the query at once; any other is logged while it waits.
"""

# ruff: noqa: PLC0415 -- a healthy start imports nothing more

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE, S_ISDIR
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar

from dafka_core import Reader
from dafka_core.config.node_options import KeyFiles, ReaderOptions
from dafka_core.errors import (
    DafkaError,
    InvalidRequestError,
    NoStoreError,
    StoreUnreachableError,
    TowerNotFoundError,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation, this_machine
from dafka_core.model.json_message import JsonMessage
from dafka_core.model.records import KnownStore, PartitionInfo, TopicPartition, merge_heads
from dafka_core.system.closing import Closing
from dafka_core.system.files import replace_file
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import MeshAddress

if TYPE_CHECKING:
    from dafka_core.ops.findings import Finding


MAX_CONCURRENT: Final = 16  # each store asked at the same time takes a thread

NO_MESH: Final = "with option stores there is no mesh to read from"

_log = logging.getLogger("dafka_spark")

Item = TypeVar("Item")
T = TypeVar("T")
E = TypeVar("E", NoStoreError, TowerNotFoundError)


def map_concurrently(work: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
    """Apply ``work`` to all items, up to ``MAX_CONCURRENT`` at a time."""
    if len(items) < 2:
        return [work(each) for each in items]
    with ThreadPoolExecutor(min(len(items), MAX_CONCURRENT)) as pool:
        return list(pool.map(work, items))


class _FlightReader(Closing):
    """A ``Reader`` without a mesh; ``refusal`` is the error for what only a mesh can do."""

    def __init__(self, places: Sequence[str], refusal: DafkaError, keys: KeyFiles) -> None:
        self._places = places  # towers or stores, for errors
        self._refusal = refusal
        self._keys = keys
        self._failure = ""  # the error of the last store that failed
        self._refresh_at = -math.inf

    @abstractmethod
    def _locations(self) -> dict[str, StoreLocation]:
        """Return the stores by name."""

    @abstractmethod
    def _refresh(self) -> set[str]:
        """Ask the stores, which report each other; return the names of those that answer."""

    def stores(self) -> list[str]:
        """See ``Reader``."""
        return sorted(self._locations())

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """See ``Reader``; the last known ones while no store answers."""
        if time.monotonic() >= self._refresh_at:
            self._refresh()
        return {name: each.locations for name, each in self._locations().items()}

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        """See ``Reader``; raise NoStoreError after ``timeout_s`` without an answer."""

        def heads_at(client: StoreClient) -> list[PartitionInfo]:
            return client.heads(topics, timeout_s=timing.REQUEST_TIMEOUT_S)

        for _ in (deadline := Deadline(timeout_s)).attempts():
            if heads := self._ask(self._at(), heads_at):
                return [*merge_heads(info for infos in heads.values() for info in infos).values()]
        error = NoStoreError(self._places, deadline.timeout_s)
        error.add_note(self._failure)
        raise error

    def wait_for_stores(self, *, timeout_s: float) -> None:
        pass  # the stores are known

    def read(self, tp: TopicPartition, start: int, end: int, *, timeout_s: float) -> NoReturn:
        raise self._refusal

    times = read

    def close(self) -> None:
        pass  # each request has a connection of its own

    def _at(self) -> list[StoreLocation]:
        return [*self._locations().values()]

    def _known_stores(self, at: Sequence[StoreLocation]) -> dict[str, list[StoreLocation]]:
        """Return the stores that each store knows, beginning with itself."""
        answers = self._ask(at, lambda client: client.stores(timeout_s=timing.REQUEST_TIMEOUT_S))
        # Not at each trigger: a silent store delays the answer.
        self._refresh_at = time.monotonic() + timing.LOCATION_MAX_AGE_S
        return answers

    def _ask(
        self, locations: Sequence[StoreLocation], work: Callable[[StoreClient], T]
    ) -> dict[str, T]:
        """Return the answers of the stores that answer, by the first URI of each."""

        def ask(location: StoreLocation) -> tuple[str, T] | None:
            uri = location.locations[0]
            try:
                with StoreClient(location, self._keys) as client:
                    return uri, work(client)
            except DafkaError as error:
                self._failure = f"{uri}: {error}"
                return None

        return dict(each for each in map_concurrently(ask, locations) if each is not None)


class NamedStoresReader(_FlightReader):
    """The stores of option ``stores``, by their URIs; one that never answered has no other name."""

    def __init__(self, uris: Sequence[str], keys: KeyFiles) -> None:
        super().__init__(uris, StoreUnreachableError(", ".join(uris), NO_MESH), keys)
        self._named = [StoreLocation("", (uri,)) for uri in uris]
        self._found: dict[str, StoreLocation] = {}  # by URI
        self._others: dict[str, StoreLocation] = {}  # stores that these know, by address

    def missing_stores(self, *, timeout_s: float) -> list[KnownStore]:
        """See ``Reader``; a store that the option does not name is missing, too."""
        there = self._refresh()
        named = self._locations()
        missing = {name: each.locations[0] for name, each in named.items() if name not in there}
        for name, other in self._others.items():
            if named.keys().isdisjoint({name, *other.locations}):
                missing[name] = "".join(other.locations[-1:])
        return sorted(KnownStore(*each) for each in missing.items())

    def _at(self) -> list[StoreLocation]:
        if not self._found:
            self._refresh()
        return [*self._found.values()]

    def _locations(self) -> dict[str, StoreLocation]:
        found = (self._found.get(each.locations[0], each) for each in self._named)
        return {each.store or each.locations[0]: each for each in found}

    def _refresh(self) -> set[str]:
        answers = self._known_stores(self._named)
        for uri, (itself, *_) in answers.items():
            self._found[uri] = itself.found_at([uri])
        if len(self._found) < len(self._named):
            self._refresh_at = time.monotonic() + timing.STORE_BACKOFF_S
        if answers:
            self._others = {each.store: each for _, *some in answers.values() for each in some}
        return {itself.store for itself, *_ in answers.values()}


class KnownStoresReader(_FlightReader):
    """The stores that this machine knew before, while no tower answers.

    Raises ``refusal``, the error of the tower, if none of them answers.
    """

    def __init__(
        self, known: Sequence[StoreLocation], refusal: TowerNotFoundError, keys: KeyFiles
    ) -> None:
        super().__init__(refusal.towers, refusal, keys)
        self.retry_at = time.monotonic() + timing.TOWER_RETRY_S  # the towers
        self._known = {each.store: each for each in known}
        self._before = [*self._known]
        if not self._refresh():
            raise refusal
        text = "%s. The query continues with the stores known before: %s"
        _log.warning(text, refusal, ", ".join(self.stores()))

    def missing_stores(self, *, timeout_s: float) -> list[KnownStore]:
        """See ``Reader``; stores without a tower report a dead one for ever, so each is asked."""
        known = {*self._before, *self._known}
        return [KnownStore(each) for each in sorted(known - self._refresh())]

    def _locations(self) -> dict[str, StoreLocation]:
        return self._known

    def _refresh(self) -> set[str]:
        answers = self._known_stores(self._at())
        if answers:
            self._known = {each.store: each for some in answers.values() for each in some}
        return {itself.store for itself, *_ in answers.values()}


ClusterReader = Reader | NamedStoresReader | KnownStoresReader
"""Access to the stores of a cluster, by the methods of ``Reader`` that these have in common."""


# -- the file of known stores ----------------------------------------------------------------------

MAX_STORES_FILES: Final = 64  # one file for each mesh; the oldest ones are deleted

_written: Final[dict[str, tuple[float, frozenset[StoreLocation]]]] = {}
"""By mesh: when this process wrote the file, and the stores in it."""


class _StoresFile(JsonMessage, frozen=True):
    what: ClassVar[str] = "file of known stores"

    stores: tuple[StoreLocation, ...]


def remember(tower: str, stores: Collection[StoreLocation]) -> None:
    """Write the locations of a mesh's stores for later processes; ignore a disk that fails."""
    new, now = frozenset(stores), time.monotonic()
    written_at, old = _written.get(tower, (0.0, frozenset()))
    if not new or (new == old and now < written_at + timing.REWRITE_S):
        return
    with suppress(OSError):
        directory = _directory()
        packed = _StoresFile(tuple(sorted(new, key=lambda each: each.store))).packed()
        replace_file(directory / _file_name(tower), packed, 0o600)
        files = sorted(directory.iterdir(), key=lambda each: each.stat().st_mtime)
        for oldest in files[:-MAX_STORES_FILES]:
            oldest.unlink()
        _written[tower] = now, new


def remembered(tower: str) -> list[StoreLocation]:
    """Return the locations that a process of this machine wrote last; empty without a file."""
    with suppress(OSError, InvalidRequestError):
        return list(_StoresFile.parse((_directory() / _file_name(tower)).read_bytes()).stores)
    return []


def _directory() -> Path:
    """Return the user's own directory; raise OSError if others have access to it."""
    directory = Path(tempfile.gettempdir()) / f"dafka-{os.getuid()}"
    directory.mkdir(0o700, exist_ok=True)
    found = directory.lstat()
    if not S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{directory} is not private to this user")
    return directory


def _file_name(tower: str) -> str:
    # With the machine's name, because a local address means another tower on another machine.
    return f"{sha256(f'{tower} {this_machine()}'.encode()).hexdigest()[:32]}.json"


# -- joining, and why no store answers -------------------------------------------------------------

FIRST_TIMEOUT_S: Final = 1.0
"""A running tower answers earlier; after this time its ports are probed."""


def join(address: MeshAddress) -> ClusterReader:
    """Open a reader of a mesh, or of the stores known before while no tower answers."""
    if address.stores:
        return NamedStoresReader(address.stores, address.keys)
    known = remembered(address.name)
    timeout = {"tower_timeout_s": timing.KNOWN_TOWER_S} if known else {}
    open_reader = partial(Reader, tower=address.tower, host=address.host, port=address.port)
    try:
        return _joined(open_reader, address.tower, {**timeout, **dict(address.node)})
    except TowerNotFoundError as error:
        return KnownStoresReader(known, error, address.keys)


def _joined(open_reader: Callable[..., Reader], tower: str, settings: Mapping[str, Any]) -> Reader:
    """Open a reader with the settings of a node; explain if no tower answers in time."""
    options = ReaderOptions.build({"tower": tower, **settings})
    deadline = Deadline(options.tower_timeout_s)
    first_s = min(FIRST_TIMEOUT_S, deadline.timeout_s)
    try:
        return open_reader(**{**settings, "tower_timeout_s": first_s, "wait_for_tower": False})
    except TowerNotFoundError as error:
        found = _probe_towers(tower, found=False)
        why = ". ".join(map(str, found))
        is_hopeless = all(each.lasts for each in found)
        if not options.wait_for_tower and (is_hopeless or deadline.is_over):
            raise diagnosed(error, deadline, why) from None
    until = "a tower answers" if options.wait_for_tower else f"{deadline.timeout_s:g} s have passed"
    _log.warning("%s. The query retries until %s", why, until)
    try:
        return open_reader(**{**settings, "tower_timeout_s": max(deadline.left_s, 0.01)})
    except TowerNotFoundError as error:
        raise diagnosed(error, deadline, why) from None


def explain(
    reader: ClusterReader, address: MeshAddress, error: NoStoreError, deadline: Deadline
) -> str:
    """Log why no store has answered yet, and return the diagnosis.

    Raise NoStoreError if the deadline has passed, or if waiting is pointless: every problem lasts,
    or one of a tower does.
    """
    from dafka_core.ops.checks import Facts, StoreFacts, check_all
    from dafka_core.ops.findings import problems
    from dafka_core.ops.gathering import asked, with_discovered
    from dafka_core.ops.port_probe import PROBE_S, towers_probed

    if isinstance(reader, Reader):
        towers = ReaderOptions.build({"tower": address.tower}).tower
        facts = with_discovered(
            Facts(tuple(towers_probed(towers, PROBE_S)), tower_found=True), reader
        )
    else:
        stores = [StoreFacts(name, locations=uris) for name, uris in reader.endpoints().items()]
        answers = asked(stores, (), PROBE_S, address.keys)
        facts = Facts(stores=tuple(each for each, _ in answers))
    found = problems(check_all(facts))
    text = ". ".join(map(str, found))
    lasting = [each for each in found if each.lasts]
    is_hopeless = lasting and (lasting == found or any(each.about == "tower" for each in lasting))
    if deadline.is_over or is_hopeless:
        raise diagnosed(error, deadline, text) from None
    if text:
        _log.warning("%s. The query waits for up to %g s", text, deadline.timeout_s)
    return text


def warn_of_towers(address: MeshAddress) -> None:
    """Log what is wrong with towers that report stores which do not connect."""
    for each in () if address.stores else _probe_towers(address.tower):
        if each.remedy:
            _log.warning("%s", each)


def diagnosed(error: E, deadline: Deadline, diagnosis: str) -> E:
    """Return the error with the whole time waited, and with a diagnosis if it names no cause."""
    if error.diagnosis or vars(error).get("unknown_hosts"):
        diagnosis = error.diagnosis
    full = replace(error, waited_s=round(deadline.waited_s, 1), diagnosis=diagnosis)
    for note in getattr(error, "__notes__", ()):
        full.add_note(note)
    return full


def _probe_towers(tower: str, *, found: bool | None = None) -> list[Finding]:
    from dafka_core.ops.port_probe import PROBE_S, check_towers, towers_probed

    towers = ReaderOptions.build({"tower": tower}).tower
    return check_towers(towers_probed(towers, PROBE_S), found=found)
