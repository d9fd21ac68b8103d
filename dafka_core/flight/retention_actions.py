"""Requests for a store to delete records: retention rules, trims and deletions."""

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
    """A store's retention, for reading and changing."""

    @property
    def rules(self) -> tuple[RetentionRule, ...]:
        """Return the rules in force."""

    @property
    def is_set(self) -> bool:
        """Return True if they were set while it ran, instead of its option."""

    @property
    def given_up(self) -> int:
        """Return the number of records deleted by rules since its start."""

    def replace(self, rules: tuple[RetentionRule, ...] | None) -> None:
        """Replace the rules, also for later starts; None restores its option."""


class DeletionControl(Protocol):
    """A store's deletions."""

    def delete(self, topic: str) -> tuple[int, int]:
        """Delete a topic; return the number of its partitions and records at the store."""


class RetentionRequest(ActionRequest, frozen=True):
    """Return the store's retention rules, after replacing them if the request has some.

    {v, rules?: [rule, ...], reset?} -> {v, rules: [rule, ...], is_set, given_up}: ``reset``
    restores those of its option; ``given_up`` is the number of records deleted since the store's
    start
    """

    action: ClassVar[str] = "dafka.retention.v1"

    rules: Annotated[tuple[str, ...], Meta(max_length=limits.MAX_NAMES)] | None = None
    reset: bool = False

    def check(self) -> None:
        """Check the rules."""
        super().check()
        self.parsed()

    def parsed(self) -> tuple[RetentionRule, ...] | None:
        """Parse the rules.

        Raises:
            InvalidRequestError: one is invalid.
        """
        try:
            return None if self.rules is None else parse_rules(self.rules)
        except ValueError as error:
            raise InvalidRequestError("rules", list(self.rules or ()), str(error)) from None


class RetentionRules(JsonMessage, frozen=True):
    """A store's rules in force."""

    rules: tuple[str, ...]
    is_set: bool
    given_up: int


class TrimRequest(ActionRequest, frozen=True):
    """Delete records below offsets, of partitions that the store has; at most to their ends.

    {v, trims: [[topic, partition, before], ...]} -> {v, earliest: [offset, ...]}, on disk
    """

    action: ClassVar[str] = "dafka.trim.v1"
    rows: ClassVar[tuple[str, ...]] = ("trims",)

    trims: Annotated[tuple[tuple[str, str, Offset], ...], Meta(max_length=limits.MAX_TRANSACTIONS)]


class Trimmed(JsonMessage, frozen=True):
    """The earliest offsets after a trim."""

    earliest: tuple[int, ...]


class DeleteRequest(ActionRequest, frozen=True):
    """Delete a topic, and note that for stores that are away.

    {v, topic} -> {v, partitions, records}, on disk: the numbers deleted here
    """

    action: ClassVar[str] = "dafka.delete.v1"

    topic: str

    def check(self) -> None:
        """Check that users may delete the topic."""
        super().check()
        if self.topic.startswith(INTERNAL):
            raise InvalidRequestError("topic", self.topic, "is internal, and cannot be deleted")


class Deleted(JsonMessage, frozen=True):
    """The numbers of deleted partitions and records."""

    partitions: int
    records: int
