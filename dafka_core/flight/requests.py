"""Requests of Flight clients (docs/flight.md), and the answers of stores.

A field's type is validated by msgspec.  Members equal to their default are omitted.  An unknown
member of a request is refused, so that misspellings are detected; clients ignore unknown members of
an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar, get_args

from msgspec import Meta
from msgspec.structs import replace

from dafka_core.config.topic_rules import RetentionRule, parse_rules
from dafka_core.errors import InvalidRequestError, ProtocolError
from dafka_core.flight import limits
from dafka_core.flight.columns import COLUMNS, DEFAULT_COLUMNS
from dafka_core.flight.limits import MAX_LEASED_BLOCKS
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.envelope import AUTO, ENVELOPE
from dafka_core.model.json_message import JsonMessage, Natural, short
from dafka_core.model.name_limits import (
    MAX_CLIENT_BYTES,
    check_address,
    check_topic,
    is_client_name,
    nearest,
)
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import (
    NO_VERSION,
    Neighbour,
    PartitionInfo,
    StagedPartition,
    TopicPartition,
    TransactionState,
)
from dafka_core.model.where import MAX_CHARACTERS, Where
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.storage import PartitionStatistics
from dafka_core.storage.environment import Space
from dafka_core.storage.leases import MAX_LEASES

MAX_OFFSET: Final = MAX_SEQUENCE + 1  # the highest ``end``

Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Version = Annotated[int, Meta(ge=NO_VERSION, le=MAX_SEQUENCE)]
TimeUs = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Attempt = Annotated[str, Meta(pattern=r"^(?!0{32})[0-9A-F]{32}\Z")]
Life = tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]
MaxRecords = Annotated[int, Meta(ge=1, le=limits.MAX_BATCH_RECORDS)]
MaxBytes = Annotated[int, Meta(ge=1, le=limits.MAX_BATCH_BYTES)]


class Request(
    JsonMessage, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """The base of all requests: ``store`` is the intended one, if no other may answer."""

    what: ClassVar[str] = "command"
    largest_bytes: ClassVar[int] = limits.MAX_REQUEST_BYTES
    may_be_empty: ClassVar[bool] = False  # true if an empty body is the request with all defaults

    store: str = ""

    @classmethod
    def parse(cls, packed: str | bytes) -> Self:
        """See ``JsonMessage.parse``."""
        if len(packed) > cls.largest_bytes:
            why = f"must have at most {cls.largest_bytes} bytes"
            raise InvalidRequestError(cls.what, f"{len(packed)} bytes", why)
        if not packed and cls.may_be_empty:
            return cls()
        request = super().parse(packed)
        cls._check_names(request)
        cls._check(request)
        return request

    @property
    def rows(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Return rows that begin with a topic and a partition, each with its member's name."""
        found: list[tuple[str, tuple[Any, ...]]] = []
        for name in self.__struct_fields__:
            match getattr(self, name):
                case ((str(), str(), *_), *_) as rows:
                    found += ((name, row) for row in rows)
        return found

    def checked(self) -> Self:
        """Return the request; raise InvalidRequestError if the store would refuse it."""
        return self.parse(self.packed())

    def _check(self) -> None:
        """Raise InvalidRequestError for mistakes beyond types, names and the order of offsets."""

    def _check_names(self) -> None:
        _check_name("topic", getattr(self, "topic", None))
        _check_name("partition", getattr(self, "partition", None), check_address)
        _check_columns(getattr(self, "columns", DEFAULT_COLUMNS))
        for topic in getattr(self, "topics", None) or ():
            _check_name("topics", topic)
        for member, row in self.rows:
            _check_name(member, row[0])
            _check_name(member, row[1], check_address)
            _check_order(member, row)
        _check_order("end", self)


class _PartitionRequest(Request, frozen=True):
    topic: str
    partition: str

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class RecordRange(NamedTuple):
    """The records from ``start`` to ``end`` (exclusive) of one partition.

    ``life`` (number, id, acks) is the partition's newest producer known to the caller: the records
    must be of a history that includes it.  ``after`` is the newest one when the caller read the
    records before ``start``: these must be unchanged.
    """

    topic: str
    partition: str
    start: Offset
    end: Offset
    life: Life | None = None
    after: Life | None = None

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)


Ranges = Annotated[tuple[RecordRange, ...], Meta(min_length=1, max_length=limits.MAX_RANGES)]


class GetRequest(Request, frozen=True):
    """A ticket: the records of ranges, one range after the other.

    With ``where`` only those that match this condition; ``envelope`` decides about its columns
    ``key`` and ``value``: ``auto`` opens envelopes, ``none`` leaves contents unchanged.  The get
    ends with an error at records that the store does not hold, or has of another history; if it is
    ``partial`` it leaves them and the rest of their range out.

    ``columns`` are the columns of the batches; with ``times`` each batch's metadata has the
    timestamps of its records.  A batch has at most ``max_records``, and at most ``max_bytes`` of
    values unless it is one record.
    """

    what: ClassVar[str] = "ticket"
    largest_bytes: ClassVar[int] = limits.MAX_TICKET_BYTES

    ranges: Ranges
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    times: bool = False
    partial: bool = False
    where: Annotated[str, Meta(max_length=MAX_CHARACTERS)] | None = None
    envelope: str = AUTO
    max_records: MaxRecords = limits.MAX_BATCH_RECORDS
    max_bytes: MaxBytes = limits.MAX_BATCH_BYTES

    def fitted(self) -> Self:
        """Return the request with batch sizes cut to the limits."""
        most = {"max_records": limits.MAX_BATCH_RECORDS, "max_bytes": limits.MAX_BATCH_BYTES}
        # Other types than integers are refused with the member's name.
        sizes = {name: getattr(self, name) for name in most}
        cut = {name: min(most[name], size) for name, size in sizes.items() if type(size) is int}
        return replace(self, **cut).checked()

    def _check(self) -> None:
        if self.envelope not in ENVELOPE:
            why = f"must be one of {', '.join(ENVELOPE)}"
            raise InvalidRequestError("envelope", short(self.envelope), why)
        try:
            if self.where is not None:
                Where.parse(self.where)
        except ValueError as error:
            raise InvalidRequestError("where", short(self.where), str(error)) from error


class PutRequest(_PartitionRequest, frozen=True):
    """The descriptor of a put: its first record becomes offset ``start`` of the partition.

    Other members are arguments of ``StoreClient.put``; ``client`` is its ``client_name``.
    """

    start: Offset
    attempt: Attempt = ""
    version: Version = NO_VERSION
    waited_s: Annotated[float, Meta(ge=0, le=limits.MAX_WAIT_S)] = 0.0
    client: str = ""

    def _check(self) -> None:
        if not is_client_name(self.client):
            why = f"must have up to {MAX_CLIENT_BYTES} bytes of visible characters"
            raise InvalidRequestError("client", short(self.client), why)
        if self.version != NO_VERSION and not self.attempt:
            raise InvalidRequestError("version", self.version, "is staged: name the 'attempt', too")


class InfoRequest(Request, frozen=True):
    """The descriptor of a topic or partition; other members become the answered tickets'."""

    topic: str
    partition: str | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    max_records: MaxRecords = limits.MAX_BATCH_RECORDS
    max_bytes: MaxBytes = limits.MAX_BATCH_BYTES


class Criteria(Request, frozen=True):
    """The partitions to list: all, or those of one topic."""

    what: ClassVar[str] = "criteria"
    may_be_empty: ClassVar[bool] = True

    topic: str | None = None


# -- a store's answers ----------------------------------------------------------------------------

BlockBytes = Annotated[int, Meta(ge=1, le=2**31)]
"""A reader allocates memory for a block, which may be slightly larger than the largest record."""


class Heads(JsonMessage, frozen=True):
    """The store's offsets of some partitions."""

    heads: tuple[PartitionInfo, ...]


class HeadsSince(JsonMessage, frozen=True):
    """Changes of topics (all partitions if ``complete``) up to ``cursor``, for the next request."""

    cursor: str
    complete: bool
    heads: tuple[PartitionInfo, ...]


class Staged(JsonMessage, frozen=True):
    """The staged records of some partitions."""

    staged: tuple[StagedPartition, ...]


class Offsets(JsonMessage, frozen=True):
    """The offset for each requested time; None if nothing is as new."""

    offsets: tuple[int | None, ...]
    now_us: int  # the store's clock
    clock_doubt: str = ""  # why the store does not trust it, or empty
    refusal: str = ""  # why the store accepts no records, or empty
    damaged: int = 0  # the number of partitions with damaged records


class RecordSizes(JsonMessage, frozen=True):
    """Approximate sizes of a record in equal parts of each range; None without records."""

    sizes: tuple[tuple[Natural, ...] | None, ...]


class TransactionStates(JsonMessage, frozen=True):
    """The progress of the requested partitions."""

    transactions: tuple[TransactionState, ...]


class Digests(JsonMessage, frozen=True):
    """The row digest of each requested range."""

    digests: tuple[str, ...]


class LeaseGranted(JsonMessage, frozen=True, omit_defaults=True):
    """Blocks to read from the store's file, of the first ``ranges`` of the request.

    Each is the number of its range, its first offset, position and size.  ``lease`` is in the slot
    of that number of file ``leases`` until the store ends it.
    """

    lease: str = ""
    slot: Annotated[int, Meta(ge=0, lt=MAX_LEASES)] = 0
    ranges: Natural = 0
    blocks: Annotated[
        tuple[tuple[Natural, Natural, Natural, BlockBytes], ...], Meta(max_length=MAX_LEASED_BLOCKS)
    ] = ()


class Done(JsonMessage, frozen=True):
    """A commit or a discard is on disk."""


class DurableEnd(JsonMessage, frozen=True, omit_defaults=True):
    """The durable end of a partition; with ``failed`` the store accepts no more of the put."""

    end: int
    failed: bool = False


class RetentionRules(JsonMessage, frozen=True):
    """A store's rules in force; ``given_up`` records were deleted by rules since its start."""

    rules: tuple[str, ...]
    is_set: bool
    given_up: int


class Trimmed(JsonMessage, frozen=True):
    """The earliest offsets after a trim."""

    earliest: tuple[int, ...]


class Deleted(JsonMessage, frozen=True):
    """The numbers of deleted partitions and records."""

    partitions: int
    records: int


class Peers(JsonMessage, frozen=True):
    """The nodes discovered by a store."""

    peers: tuple[Neighbour, ...]


# -- actions ---------------------------------------------------------------------------------------

A = TypeVar("A", bound=JsonMessage)


class ActionRequest(Request, Generic[A], frozen=True):
    """The body of an action, to which a store sends answers of type ``A`` (docs/flight.md).

    A subclass's docstring is its description in ListActions, and its name is the action's: that of
    ``HeadsRequest`` is ``dafka.heads.v1``.
    """

    what: ClassVar[str] = "body"
    largest_bytes: ClassVar[int] = limits.MAX_ACTION_BYTES
    action: ClassVar[str]
    answer: ClassVar[type[JsonMessage]]

    def __init_subclass__(cls) -> None:
        (cls.answer,) = get_args(vars(cls)["__orig_bases__"][0])
        cls.may_be_empty = not cls.__annotations__  # it has no members
        cls.action = f"dafka.{cls.__name__.removesuffix('Request').lower()}.v1"


class HeadsRequest(ActionRequest[Heads], frozen=True):
    """Return the store's partitions of these topics, or all."""

    topics: Annotated[tuple[str, ...], Meta(max_length=limits.MAX_NAMES)] | None = None


class OffsetsRequest(ActionRequest[Offsets], frozen=True):
    """Return the first offsets with a time (since the epoch UTC) or a later one.

    With ``after_all``, all records from each returned offset on have its time or a later one.
    """

    times: Annotated[tuple[tuple[str, str, TimeUs], ...], Meta(max_length=limits.MAX_TIMES)]
    after_all: bool = False


class WaitRequest(ActionRequest[DurableEnd], _PartitionRequest, frozen=True):
    """Wait until records are on disk, and a transaction or a newer one is the partition's last."""

    end: Offset
    timeout_s: Annotated[float, Meta(ge=0, le=limits.MAX_WAIT_S)]
    transaction: tuple[Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)], Offset, Offset] | None = None

    def _check(self) -> None:
        if self.transaction is not None and not (
            self.transaction[1] < self.transaction[2] <= self.end
        ):
            why = f"must have start below end, and end not above {self.end}"
            raise InvalidRequestError("transaction", list(self.transaction), why)


class WatchRequest(ActionRequest[HeadsSince], frozen=True):
    """Return changes of these topics, or of all, since an answer; wait until there are some."""

    timeout_s: Annotated[float, Meta(ge=0, le=limits.MAX_WAIT_S)]
    topics: Annotated[tuple[str, ...], Meta(max_length=limits.MAX_NAMES)] | None = None
    cursor: Annotated[str, Meta(max_length=limits.MAX_CURSOR_CHARS)] = ""


class TransactionsRequest(ActionRequest[TransactionStates], frozen=True):
    """Return the progress of partitions' transactions."""

    largest_bytes: ClassVar[int] = limits.MAX_TRANSACTIONS_BYTES

    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=limits.MAX_TRANSACTIONS)]


class CommitRequest(ActionRequest[Done], frozen=True):
    """Make staged records visible, all or none."""

    largest_bytes: ClassVar[int] = limits.MAX_TRANSACTIONS_BYTES

    transactions: Annotated[
        tuple[tuple[str, str, Attempt, Offset, Offset, Version], ...],
        Meta(max_length=limits.MAX_TRANSACTIONS),
    ]

    def _check(self) -> None:
        seen: set[tuple[str, str]] = set()
        for row in self.transactions:
            topic, partition, _, start, end, _ = row
            if start >= end:
                why = "must have records: start below end"
                raise InvalidRequestError("transactions", short(list(row)), why)
            if (topic, partition) in seen:
                why = "names a partition twice"
                raise InvalidRequestError("transactions", short(list(row)), why)
            seen.add((topic, partition))


class DigestRange(NamedTuple):
    """Rows from ``start`` to ``end`` (exclusive): those of an attempt, or the visible ones."""

    topic: str
    partition: str
    attempt: Annotated[str, Meta(pattern=r"^((?!0{32})[0-9A-F]{32})?\Z")]
    start: Offset
    end: Offset


class DigestsRequest(ActionRequest[Digests], frozen=True):
    """Return digests of rows, in any order: their number and the sum of their hashes."""

    largest_bytes: ClassVar[int] = limits.MAX_TRANSACTIONS_BYTES

    ranges: Annotated[tuple[DigestRange, ...], Meta(max_length=limits.MAX_TRANSACTIONS)]


class StagedRequest(ActionRequest[Staged], frozen=True):
    """Return staged records, which are invisible to readers and in no other list."""


class DiscardRequest(ActionRequest[Done], frozen=True):
    """Discard attempts' staged records."""

    largest_bytes: ClassVar[int] = limits.MAX_TRANSACTIONS_BYTES

    stages: Annotated[
        tuple[tuple[str, str, Attempt], ...], Meta(max_length=limits.MAX_TRANSACTIONS)
    ]


class ForgetRequest(ActionRequest[Done], frozen=True):
    """Forget another store until it appears again."""

    address: str

    def _check(self) -> None:
        _check_name("address", self.address, check_address)


class LeaseRequest(ActionRequest[LeaseGranted], frozen=True):
    """Return the positions in the store's file of ranges' blocks, which do not change meanwhile.

    ``done`` is a lease to end; without ranges no new one is requested.
    """

    largest_bytes: ClassVar[int] = limits.MAX_TICKET_BYTES

    ranges: Annotated[tuple[RecordRange, ...], Meta(max_length=limits.MAX_RANGES)] = ()
    partial: bool = False
    done: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")] = ""


class SizesRequest(ActionRequest[RecordSizes], frozen=True):
    """Return approximate sizes of the records of ranges, by samples of the log's blocks."""

    largest_bytes: ClassVar[int] = limits.MAX_TICKET_BYTES

    ranges: Ranges


class SpaceRequest(ActionRequest[Space], frozen=True):
    """Return the size of the store's file, and the space that readers pin."""


class StoresRequest(ActionRequest[StoreLocation], frozen=True):
    """Return the locations of all known stores, this one included."""


class DescribeRequest(ActionRequest[StoreLocation], frozen=True):
    """Return this store's location."""


def _check_name(member: str, name: str | None, check: Callable[[str], None] = check_topic) -> None:
    try:
        if name is not None:
            check(name)
    except ProtocolError as error:
        raise InvalidRequestError(member, short(name), error.reason) from error


def _check_order(member: str, given: object) -> None:
    start, end = getattr(given, "start", 0), getattr(given, "end", None)
    if end is not None and start > end:
        why = f"must not be below start, which is {start}"
        raise InvalidRequestError(member, end, why)


def _check_columns(names: Sequence[str]) -> None:
    if not names:
        raise InvalidRequestError("columns", [], f"must name some of {', '.join(COLUMNS)}")
    for index, name in enumerate(names):
        if name not in COLUMNS:
            raise InvalidRequestError("columns", short(name), nearest(name, COLUMNS))
        if name in names[:index]:
            raise InvalidRequestError("columns", name, "is there twice")


Rules = Annotated[tuple[str, ...], Meta(max_length=limits.MAX_NAMES)]


class RetentionRequest(ActionRequest[RetentionRules], frozen=True):
    """Return the store's retention rules, after replacing them if the request has some.

    With ``previous`` they are replaced only if these are in force: a client that changes one of
    them then loses no change of another client.
    """

    rules: Rules | None = None
    reset: bool = False
    previous: Rules | None = None

    def _check(self) -> None:
        self.parsed()

    def parsed(self) -> tuple[RetentionRule, ...] | None:
        """Parse the rules; raise InvalidRequestError if one is invalid."""
        try:
            return None if self.rules is None else parse_rules(self.rules)
        except ValueError as error:
            raise InvalidRequestError("rules", list(self.rules or ()), str(error)) from None


class TrimRequest(ActionRequest[Trimmed], frozen=True):
    """Delete records below offsets, of partitions that the store has; at most to their ends."""

    trims: Annotated[tuple[tuple[str, str, Offset], ...], Meta(max_length=limits.MAX_TRANSACTIONS)]


class DeleteRequest(ActionRequest[Deleted], frozen=True):
    """Delete a topic, and note that for stores that are away."""

    topic: str

    def _check(self) -> None:
        if self.topic.startswith(INTERNAL):
            raise InvalidRequestError("topic", self.topic, "is internal, and cannot be deleted")


class PeersRequest(ActionRequest[Peers], frozen=True):
    """Return the nodes discovered by this store, and its connections."""


def furthest_facts(
    facts: Iterable[PartitionStatistics],
) -> dict[TopicPartition, PartitionStatistics]:
    """Return the facts of each partition from the store with its last and most records.

    Not every store knows the name of its client.
    """
    ranked = sorted(facts, key=lambda each: (each.end, each.records))
    clients = {each.tp: each.client for each in ranked if each.client}
    return {each.tp: replace(each, client=clients.get(each.tp, "")) for each in ranked}
