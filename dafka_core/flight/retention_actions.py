"""Requests to a store that have it keep less: its rules of retention, trims and deletions."""

from __future__ import annotations

from typing import Annotated, ClassVar, Protocol

from msgspec import Meta

from dafka_core.config.topic_rules import RetentionRule, parse_rules
from dafka_core.errors import InvalidRequestError
from dafka_core.flight import limits
from dafka_core.flight.requests import ActionRequest, Offset
from dafka_core.model.json_message import JsonMessage
from dafka_core.model.names import INTERNAL


class RetentionControl(Protocol):
    """A store's retention, as others see it and change it."""

    @property
    def rules(self) -> tuple[RetentionRule, ...]:
        """Those that it goes by."""

    @property
    def is_set(self) -> bool:
        """Whether they were set while it ran, and are not those that it was started with."""

    @property
    def given_up(self) -> int:
        """How many records it has given up by rules since it was started."""

    def replace(self, rules: tuple[RetentionRule, ...] | None) -> None:
        """Has it go by other rules, also when it is started again; None: by its option."""


class DeletionControl(Protocol):
    """A store's deletions."""

    def delete(self, topic: str) -> tuple[int, int]:
        """Deletes a topic: of how many partitions, and how many records, the store has given up."""


class RetentionRequest(ActionRequest, frozen=True):
    """The store's rules of retention, which are replaced first, if the request has some.

    {v, rules?: [rule, ...], reset?} -> {v, rules: [rule, ...], is_set, given_up}: with ``reset``
    those of its option count again; ``given_up`` are records since the store was started
    """

    action: ClassVar[str] = "dafka.retention.v1"

    rules: Annotated[tuple[str, ...], Meta(max_length=limits.MAX_NAMES)] | None = None
    reset: bool = False

    def check(self) -> None:
        """Rules are rules."""
        super().check()
        self.parsed()

    def parsed(self) -> tuple[RetentionRule, ...] | None:
        """The rules.

        Raises:
            InvalidRequestError: one is none.
        """
        try:
            return None if self.rules is None else parse_rules(self.rules)
        except ValueError as error:
            raise InvalidRequestError("rules", list(self.rules or ()), str(error)) from None


class RetentionRules(JsonMessage, frozen=True):
    """What a store goes by."""

    rules: tuple[str, ...]
    is_set: bool
    given_up: int


class TrimRequest(ActionRequest, frozen=True):
    """Give up records below offsets, of partitions that the store has; at most to their ends.

    {v, trims: [[topic, partition, before], ...]} -> {v, earliest: [offset, ...]}, on disk
    """

    action: ClassVar[str] = "dafka.trim.v1"
    rows: ClassVar[tuple[str, ...]] = ("trims",)

    trims: Annotated[tuple[tuple[str, str, Offset], ...], Meta(max_length=limits.MAX_TRANSACTIONS)]


class Trimmed(JsonMessage, frozen=True):
    """Where partitions begin from now on."""

    earliest: tuple[int, ...]


class DeleteRequest(ActionRequest, frozen=True):
    """Delete what the store has of a topic, and note that, for stores that hear of it later.

    {v, topic} -> {v, partitions, records}, on disk: how many it has given up
    """

    action: ClassVar[str] = "dafka.delete.v1"

    topic: str

    def check(self) -> None:
        """The topic is one that users may delete."""
        super().check()
        if self.topic.startswith(INTERNAL):
            raise InvalidRequestError("topic", self.topic, "is internal, and cannot be deleted")


class Deleted(JsonMessage, frozen=True):
    """What a store has given up."""

    partitions: int
    records: int
