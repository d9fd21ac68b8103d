"""What travels as JSON objects with a version, declared as Structs; and the store's answers.

Clients pass over members of an answer that they do not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Annotated, Any, ClassVar, Final, Self

import msgspec
from msgspec import Meta

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.limits import MAX_LEASED_BLOCKS
from dafka_core.near_names import nearest_name
from dafka_core.records import PartitionInfo, StagedPartition, TopicPartition, TransactionState
from dafka_core.storage.leases import MAX_LEASES

VERSION: Final = 1

Natural = Annotated[int, Meta(ge=0, le=2**62)]
Slot = Annotated[int, Meta(ge=0, lt=MAX_LEASES)]
BlockBytes = Annotated[int, Meta(ge=1, le=2**31)]
"""A reader makes room for a block; one may be little more than the largest record."""


def pack(members: dict[str, Any], version: int = VERSION) -> bytes:
    """A JSON object with these members and the version, in ASCII."""
    return json.dumps({"v": version, **members}).encode("ascii")


class JsonMessage(msgspec.Struct, frozen=True):
    """A JSON object whose members are the version, ``v``, and the class's fields.

    Python's ``json`` makes and reads the text, msgspec checks what it says: msgspec's own codec
    refuses lone surrogates, which stand for octets of a name that are not UTF-8.
    """

    what: ClassVar[str] = "answer"
    """What an error calls an object that cannot be read."""
    json_version: ClassVar[int] = VERSION

    def packed(self) -> bytes:
        """The message as it travels."""
        return pack(msgspec.to_builtins(self), self.json_version)

    @classmethod
    def parse(cls, packed: str | bytes) -> Self:
        """The message that travelled.

        Raises:
            InvalidRequestError: it is none; the error names the member.
        """
        try:
            found = json.loads(packed)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            why = "must be a JSON object (docs/flight.md)"
            raise InvalidRequestError(cls.what, short(packed), why)
        version = found.pop("v", None)
        if type(version) is not int or version != cls.json_version:
            raise InvalidRequestError(
                "v", short(version), f"must be the version, {cls.json_version}"
            )
        try:
            return msgspec.convert(found, cls)
        except msgspec.ValidationError as error:
            raise _refused(found, cls.__struct_fields__, str(error)) from error
        except UnicodeEncodeError:  # of a text that is in the place of something else
            why = "has half a surrogate pair where no text can be"
            raise InvalidRequestError(cls.what, short(packed), why) from None


class Heads(JsonMessage, frozen=True):
    """What the store holds of some partitions."""

    heads: tuple[PartitionInfo, ...]


class HeadsSince(JsonMessage, frozen=True):
    """What of some topics has changed; all that the store holds of them if ``complete``.

    ``cursor`` stands for this moment in the next request.
    """

    cursor: str
    complete: bool
    heads: tuple[PartitionInfo, ...]


class Staged(JsonMessage, frozen=True):
    """What is staged in some partitions."""

    staged: tuple[StagedPartition, ...]


class Offsets(JsonMessage, frozen=True):
    """The offset for each time that was asked for; None where nothing was stored then or later."""

    offsets: tuple[int | None, ...]
    now_us: int
    """The store's clock."""
    clock_doubt: str = ""
    """Why the store does not go by it, if it does not."""


Sizes = tuple[Annotated[int, Meta(ge=0)], ...]
"""About how many bytes a record takes in each part of a range; the parts are of one size."""


class RecordSizes(JsonMessage, frozen=True):
    """Those of each range that was asked for; None of one of which the store holds nothing."""

    sizes: tuple[Sizes | None, ...]


class TransactionStates(JsonMessage, frozen=True):
    """How far the partitions that were asked for are."""

    transactions: tuple[TransactionState, ...]


class Digests(JsonMessage, frozen=True):
    """The row digest of each range that was asked for."""

    digests: tuple[str, ...]


class LeaseGranted(JsonMessage, frozen=True, omit_defaults=True):
    """Blocks to be read from the store's file: first offset, position and size of each.

    ``lease`` is in the slot of that number of file ``leases`` until the store ends it.
    """

    lease: str = ""
    slot: Slot = 0
    blocks: Annotated[
        tuple[tuple[Natural, Natural, BlockBytes], ...], Meta(max_length=MAX_LEASED_BLOCKS)
    ] = ()


class LeasesGranted(JsonMessage, frozen=True):
    """Blocks of the first ``ranges`` of many: number of the range, and as ``LeaseGranted``."""

    lease: str
    slot: Slot
    ranges: Annotated[int, Meta(ge=1)]
    blocks: Annotated[
        tuple[tuple[Natural, Natural, Natural, BlockBytes], ...], Meta(max_length=MAX_LEASED_BLOCKS)
    ]


class SpaceUsed(JsonMessage, frozen=True):
    """What a store's file takes, how much of that is free, and the leases that readers have."""

    file_bytes: int
    free_bytes: int
    leases: int
    oldest_lease_s: float


class Done(JsonMessage, frozen=True):
    """A commit or a discard is on disk."""


class PartitionFacts(JsonMessage, frozen=True):
    """What a partition takes and when it was written: the metadata of its FlightInfo."""

    topic: str
    partition: str
    earliest: Natural
    end: Natural
    records: Natural
    bytes: Natural
    first_time_us: int | None
    last_time_us: int | None

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


def furthest_facts(
    facts: Iterable[PartitionFacts],
) -> dict[TopicPartition, PartitionFacts]:
    """Of each partition what that store says which has it furthest, and most of it."""
    ranked = sorted(facts, key=lambda each: (each.end, each.records))
    return {each.tp: each for each in ranked}


class DurableEnd(JsonMessage, frozen=True, omit_defaults=True):
    """Up to where a partition is on disk; with ``failed`` the store takes no more of the put."""

    end: int
    failed: bool = False


def _refused(found: dict[str, Any], known: Collection[str], text: str) -> InvalidRequestError:
    """An error whose ``text`` is "Expected `int` >= 0 - at `$.times[0][2]`", for instance."""
    if text.startswith("Object contains unknown field"):
        name = min(found.keys() - set(known))
        return InvalidRequestError(str(short(name)), short(found[name]), nearest(name, known))
    missing = re.match(r"Object missing required field `(\w+)`", text)
    if missing:
        return InvalidRequestError(missing[1], None, "is required")
    why, _, path = text.partition(" - at `$.")
    member, *indexes = re.findall(r"\w+", path)
    value = found[member]
    for index in indexes:
        value = value[int(index)]
    return InvalidRequestError(member, short(value), why.replace("Expected", "must be", 1))


def nearest(name: str, known: Collection[str]) -> str:
    """The sentence for a name that is not known: the nearest known one, or all of them."""
    near = nearest_name(name, known)
    return f"did you mean {near!r}?" if near else f"must be one of {', '.join(known)}"


def short(value: object) -> object:
    """A value that came from elsewhere, cut where it is too long for an error's sentence."""
    text = repr(value)
    return value if len(text) <= 100 else f"{text[:100]}..."
