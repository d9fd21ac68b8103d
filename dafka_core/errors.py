"""All errors.  Each carries its facts as attributes and names the remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from dafka_core.model.names import printable, shown_partition

HIDDEN: Final = "(not shown)"  # replaces a value that may be a secret

_SECRET: Final = re.compile(
    r"pas+w|pwd|passphrase|secret|jaas|token|credential|sasl|\bssl|\btls"
    r"|(access|account|api|private|shared)[._-]?key|(^|(?<!_per)[._])key$",
    re.IGNORECASE,
)
"""Options whose values are never logged, also misspelt ones and other programs'."""


def is_secret(option: str) -> bool:
    """Return True if an option's name suggests a secret value."""
    return _SECRET.search(option) is not None


class DafkaError(Exception):
    """Base of all errors of this package: fields are facts, formatted by ``sentence``."""

    sentence: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.args = (printable(self._sentence()),)  # some facts may come from the network

    def _sentence(self, **facts: object) -> str:
        return self.sentence.format(**vars(self) | facts)

    def __reduce__(self) -> tuple[object, ...]:
        # Spark carries errors between processes; the default pickling calls the class with the
        # finished sentence, which the constructors do not take.
        return type(self).__new__, (type(self), *self.args), self.__dict__


@dataclass(eq=False)
class ConfigError(DafkaError, ValueError):
    """An invalid option, or another ``kind`` of setting: unknown or out of bounds.

    The value of an option with a secret's name is not kept.
    """

    sentence = "{kind} {option!r} = {shown}: {why}"
    option: str
    value: object
    why: str
    kind: str = "option"

    def __post_init__(self) -> None:
        if is_secret(self.option):
            self.value = HIDDEN
        super().__post_init__()

    def _sentence(self, **facts: object) -> str:
        # A text as users write it, with escaped names.
        shown = f"'{self.value}'" if isinstance(self.value, str) else repr(self.value)
        return super()._sentence(shown=shown if len(shown) <= 300 else f"{shown[:300]}...")


@dataclass(eq=False)
class InvalidRequestError(DafkaError, ValueError):
    """A request over Arrow Flight that a store refuses, or an invalid answer."""

    sentence = "member {member!r} = {value!r}: {why}"
    member: str
    value: object
    why: str


@dataclass(eq=False)
class NotAllowedError(DafkaError):
    """A request that key ``name`` does not permit: ``may`` lists its permissions."""

    sentence = "key {name} may {may}, and not {asked} (docs/security.md)"
    name: str
    may: str
    asked: str


@dataclass(eq=False)
class ProtocolError(DafkaError):
    """Frames that are not a Dafka message.  The only error the codec raises."""

    sentence = "{reason}"
    reason: str


@dataclass(eq=False)
class ClosedError(DafkaError):
    """A call on a closed object."""

    sentence = "the {what} is closed"
    what: str


@dataclass(eq=False)
class ForkedError(DafkaError):
    """A use of an object of this forked process's parent, process ``owner``."""

    sentence = (
        "this {what} is process {owner}'s, which has forked this one: its threads are not here; "
        "make a new one in this process, or start processes anew (multiprocessing's method 'spawn')"
    )
    what: str
    owner: int


@dataclass(eq=False)
class NodeFailedError(DafkaError):
    """A node's own thread ended with an error; the cause is chained."""

    sentence = "the {what} has failed: {why}"
    what: str
    why: str


@dataclass(eq=False)
class _TowersError(DafkaError):
    towers: Sequence[str]
    waited_s: float
    diagnosis: str = field(default="", kw_only=True)  # the known reason; replaces the possible ones
    nobody: ClassVar[str] = ""  # the beginning of the sentence

    def __post_init__(self) -> None:
        self.towers = tuple(self.towers)
        super().__post_init__()

    def _sentence(self, **facts: object) -> str:
        began = f"{self.nobody} {', '.join(self.towers)} within {self.waited_s:g} s"
        if self.diagnosis:
            return f"{began}: {self.diagnosis}"
        return super()._sentence(began=began, **facts)


@dataclass(eq=False)
class TowerNotFoundError(_TowersError):
    """No tower answered in time; ``unknown_hosts`` are names of towers that do not resolve."""

    nobody = "no tower answered at"
    sentence = (
        "{began}{cause} a running one (option 'tower', environment DAFKA_TOWER); 'dafka doctor' "
        "finds the cause"
    )
    unknown_hosts: Sequence[str] = ()

    def _sentence(self, **facts: object) -> str:
        self.unknown_hosts = tuple(self.unknown_hosts)
        cause = "; start one with 'dafka tower', or name"
        if names := ", ".join(self.unknown_hosts):
            cause = f", and there is no host {names}; correct the name, or name"
        return super()._sentence(cause=cause)


@dataclass(eq=False)
class NoStoreError(_TowersError):
    """No store has answered in time.

    ``unconnected`` are discovered stores that have not connected to this node at ``endpoint``: they
    receive none of its requests.
    """

    nobody = "no store was heard of through"
    sentence = "{began}; start one with 'dafka store --dir DIR'"
    unconnected: Sequence[str] = ()
    endpoint: str = ""

    def _sentence(self, **facts: object) -> str:
        self.unconnected = tuple(self.unconnected)
        if self.diagnosis or not self.unconnected:
            return super()._sentence(**facts)
        stores = ", ".join(self.unconnected)
        return (
            f"no store has answered within {self.waited_s:g} s: {stores} cannot "
            f"connect to this node at {self.endpoint}; set option host to an address that they "
            "reach, and let its port (option port) pass the firewall, or have records read by "
            "Arrow Flight, which needs connections to the stores only"
        )


@dataclass(eq=False)
class PartitionError(DafkaError):
    """Base of the errors that concern one partition, which their sentence names first."""

    topic: str
    partition: str

    def _sentence(self, **facts: object) -> str:
        return f"{shown_partition(self.topic, self.partition)}: {super()._sentence(**facts)}"


@dataclass(eq=False)
class BackPressureError(PartitionError):
    """A publish without room: too many records wait for their acknowledgement."""

    sentence = (
        "{unacknowledged} records wait for a store's acknowledgement and none came for "
        "{waited_s:g} s; start a store, or raise 'max_unacked_records' and 'max_unacked_bytes'"
    )
    unacknowledged: int
    waited_s: float


@dataclass(eq=False)
class NotAcknowledgedError(PartitionError):
    """Records that stores have not acknowledged in time; they may or may not be stored.

    ``asked_for`` is an acknowledged record that a store requests, if any.
    """

    sentence = (
        "{count} records are not acknowledged after {waited_s:g} s; they may not be stored. {why}"
    )
    count: int
    waited_s: float
    asked_for: int | None = None

    def _sentence(self, **facts: object) -> str:
        why = (
            "Is a store running, with room on its disk and below its limits? See 'dafka doctor', "
            "and the store's log for records that it refused"
        )
        if self.asked_for is not None:
            why = (
                f"A store asks for record {self.asked_for}, which was acknowledged, and the "
                "producer does not keep it: the stores that had it are away, or were put back or "
                "wiped. Start them; if they are gone, start the producer again, which goes on from "
                "what there is"
            )
        return super()._sentence(why=why)


@dataclass(eq=False)
class ProducerFencedError(PartitionError):
    """A newer producer, life ``number`` of the partition, has taken over.

    Records ``start`` to ``end`` (exclusive) are not acknowledged, and not in the partition unless
    a store had them before the newer producer asked.
    """

    sentence = (
        "another producer with this address has taken over (life {number}): records {start} to "
        "{end} (exclusive) are not acknowledged; give each producer an address of its own, and "
        "publish them again if the partition does not have them"
    )
    number: int
    start: int
    end: int


@dataclass(eq=False)
class MissingStoresError(PartitionError):
    """A producer cannot resume: ``stores`` may have acknowledged records, and do not answer.

    ``needed`` stores have to answer.
    """

    sentence = (
        "{needed} stores have to say how far it goes, and {missing} do not answer; start them, or "
        "wait longer (option resume_timeout_s). If they are gone for ever, say so with option "
        "resume_missing='ignore': what only they have acknowledged is lost then, or set aside when "
        "they come back"
    )
    needed: int
    stores: Sequence[str]

    def _sentence(self, **facts: object) -> str:
        self.stores = tuple(self.stores)
        return super()._sentence(missing=", ".join(self.stores))


@dataclass(eq=False)
class PartitionFullError(PartitionError):
    """Records beyond the last possible offset."""

    sentence = (
        "{count} records were to be written from offset {offset} on, and there is none from {end} "
        "on: publish to a new partition, by a producer without an address"
    )
    offset: int
    count: int
    end: int


@dataclass(eq=False)
class RecordTooLargeError(PartitionError, ValueError):
    """A record, published at ``offset`` or about to be, above the limit of ``node``."""

    sentence = (
        "the record at offset {offset} has {size_bytes} bytes, and {node} takes at most "
        "{limit_bytes}: raise its option max_record_bytes, or publish smaller records"
    )
    offset: int
    size_bytes: int
    limit_bytes: int
    node: str


@dataclass(eq=False)
class StoreError(DafkaError):
    """A store's directory that cannot be read or written."""

    sentence = "store at {directory}: {why}"
    directory: Path | str
    why: str

    def __post_init__(self) -> None:
        self.directory = str(self.directory)
        super().__post_init__()


@dataclass(eq=False)
class DiskFullError(StoreError):
    """A store's disk is full: nothing of the write is on it, and what is there can be read."""


@dataclass(eq=False)
class LeaseEndedError(PartitionError):
    """A store has ended a reader's lease of its file; records read before are valid."""

    sentence = (
        "store {store} ended the lease of its file before offset {offset} was read, as it does "
        "after {lease_s:g} s or when it needs the space: read on over Flight"
    )
    store: str
    offset: int
    lease_s: float


@dataclass(eq=False)
class DataLossError(PartitionError):
    """Records that no store and no producer has any more.

    ``wanted`` is the first missing offset, ``available`` the first later one that is available, if
    any.
    """

    sentence = "offset {wanted} was asked for, {first} is available: {why}"
    wanted: int
    available: int | None
    why: str

    def _sentence(self, **facts: object) -> str:
        first = "nothing" if self.available is None else f"offset {self.available} on"
        return super()._sentence(first=first)


CHANGED: Final = "a newer producer of the partition has gone on from there"


@dataclass(eq=False)
class HistoryChangedError(DataLossError):
    """Records that were read, up to ``position`` (exclusive), and are replaced in the partition.

    From ``wanted`` on it has others: a newer producer has continued without the older one's.  The
    stores that had them have set them aside.
    """

    sentence = (
        "the records from offset {wanted} to {position} (exclusive) that were read are not in it "
        "any more: {why}; the consumer goes on with those that are. Stores keep the others ('dafka "
        "store aside')"
    )
    position: int = 0


@dataclass(eq=False)
class FetchTimeoutError(PartitionError):
    """No node sent the requested records in time."""

    sentence = (
        "offsets {offset} to {end} (exclusive) did not arrive: no progress for {waited_s:g} s. Is "
        "a store that has them running?"
    )
    offset: int
    end: int
    waited_s: float


@dataclass(eq=False)
class StoreUnreachableError(DafkaError):
    """A store that does not answer, or cannot now; another one may."""

    sentence = "{who}: {why}; another store may have the records"
    store: str
    why: str

    def _sentence(self, **facts: object) -> str:
        return super()._sentence(who=f"store {self.store}" if self.store else "the contacted store")


@dataclass(eq=False)
class StoreBusyError(StoreUnreachableError):
    """A store at its limits; others have had a turn in ``waited_s`` if it moves."""

    waited_s: float = 0.0
    moves: bool = False


@dataclass(eq=False)
class OffsetConflictError(PartitionError):
    """Records that do not begin where their partition ends: they overlap, or leave a gap."""

    sentence = (
        "records were to be written from offset {offset} on, but the partition ends at {end}: go "
        "on from there"
    )
    offset: int
    end: int


@dataclass(eq=False)
class FencedError(PartitionError):
    """A step of an attempt that another one has replaced; nothing of it is visible."""

    sentence = (
        "attempt {attempt} has nothing staged here: another attempt has taken over, or what it "
        "staged was discarded; write the transaction again, as a new attempt"
    )
    attempt: str
