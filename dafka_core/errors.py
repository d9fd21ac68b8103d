"""Every error Dafka raises.  Each carries its facts as attributes and says what would be right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dafka_core.records import Transaction


class DafkaError(Exception):
    """Base of all errors of this package."""

    def __reduce__(self) -> tuple[object, ...]:
        # Spark carries exceptions between processes; the default pickling calls the class with
        # the finished sentence, which the constructors below do not take.
        return (_rebuild, (type(self), self.__dict__, self.args))


def _rebuild(
    kind: type[DafkaError], facts: dict[str, object], args: tuple[object, ...]
) -> DafkaError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class ConfigError(DafkaError, ValueError):
    """An option that cannot be used: unknown, of the wrong type or out of bounds."""

    def __init__(self, option: str, value: object, why: str) -> None:
        super().__init__(f"option {option!r} = {value!r}: {why}")
        self.option = option
        self.value = value
        self.why = why


class ProtocolError(DafkaError):
    """Frames that are not a Dafka message.  The only error the codec raises."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ClosedError(DafkaError):
    """A call on something that has been closed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the {what} is closed")
        self.what = what


class NodeFailedError(DafkaError):
    """A node's own thread ended with an error; the cause is chained."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"the {what} has failed: {why}")
        self.what = what
        self.why = why


class TowerNotFoundError(DafkaError):
    """No tower answered in time."""

    def __init__(self, towers: Sequence[str], waited_s: float) -> None:
        super().__init__(
            f"no tower answered at {', '.join(towers)} within {waited_s:g} s; start one with "
            "'dafka tower', or name a running one (option 'tower', environment DAFKA_TOWER)"
        )
        self.towers = tuple(towers)
        self.waited_s = waited_s


class BackPressureError(DafkaError):
    """A publish that found no room: too many records wait for their acknowledgement."""

    def __init__(self, topic: str, partition: str, unacknowledged: int, waited_s: float) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: {unacknowledged} records wait for a store's "
            f"acknowledgement and none came for {waited_s:g} s; start a store, or raise "
            "'max_unacked_records' and 'max_unacked_bytes'"
        )
        self.topic = topic
        self.partition = partition
        self.unacknowledged = unacknowledged
        self.waited_s = waited_s


class NotAcknowledgedError(DafkaError):
    """Records that stores have not acknowledged in time; they may or may not be stored."""

    def __init__(self, topic: str, partition: str, count: int, waited_s: float) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: {count} records are not acknowledged after "
            f"{waited_s:g} s; they may not be stored. Is a store running ('dafka store')?"
        )
        self.topic = topic
        self.partition = partition
        self.count = count
        self.waited_s = waited_s


class StoreError(DafkaError):
    """A store's directory that cannot be read or written."""

    def __init__(self, directory: Path | str, why: str) -> None:
        super().__init__(f"store at {directory}: {why}")
        self.directory = str(directory)
        self.why = why


class DataLossError(DafkaError):
    """Records that no store and no producer has any more."""

    def __init__(
        self, topic: str, partition: str, wanted: int, available: int | None, why: str
    ) -> None:
        first = "nothing" if available is None else f"offset {available} on"
        super().__init__(
            f"topic {topic!r}, partition {partition}: offset {wanted} was asked for, {first} is "
            f"available: {why}"
        )
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.available = available
        self.why = why


class FetchTimeoutError(DafkaError):
    """Nobody sent the records asked for in time."""

    def __init__(self, topic: str, partition: str, offset: int, end: int, waited_s: float) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: offsets {offset} to {end} (exclusive) did "
            f"not arrive: no progress for {waited_s:g} s. Is a store that has them running?"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.end = end
        self.waited_s = waited_s


class NoStoreError(DafkaError):
    """No store was heard of in time."""

    def __init__(self, towers: Sequence[str], waited_s: float) -> None:
        super().__init__(
            f"no store was heard of through {', '.join(towers)} within {waited_s:g} s; "
            "start one with 'dafka store --dir DIR'"
        )
        self.towers = tuple(towers)
        self.waited_s = waited_s


class StoreUnreachableError(DafkaError):
    """A store that does not answer, or cannot now; another one may."""

    def __init__(self, store: str, why: str) -> None:
        super().__init__(f"store {store or 'asked'}: {why}; another store may have the records")
        self.store = store
        self.why = why


class OffsetConflictError(DafkaError):
    """A put that does not begin where its partition ends: it overlaps, or leaves a gap."""

    def __init__(self, topic: str, partition: str, offset: int, end: int) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: records were to be put from offset {offset} "
            f"on, but the partition ends at {end}: go on from there"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.end = end


class FencedError(DafkaError):
    """A step of an attempt that another one has taken the place of; nothing of it is visible."""

    def __init__(self, topic: str, partition: str, attempt: str) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: attempt {attempt} has nothing staged here: "
            "another attempt has taken over, or what it staged was discarded; write the unit "
            "again, as a new attempt"
        )
        self.topic = topic
        self.partition = partition
        self.attempt = attempt


class TransactionExistsError(DafkaError):
    """A unit that is not newer than the last one of its partition: it is there already, whole."""

    def __init__(self, topic: str, partition: str, transaction: Transaction) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: unit {transaction.number} is there already, at "
            f"offsets {transaction.start} to {transaction.end} (exclusive), and only newer ones can be written: "
            "go on with what follows it"
        )
        self.topic = topic
        self.partition = partition
        self.transaction = transaction
