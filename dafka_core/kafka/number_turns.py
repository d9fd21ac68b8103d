"""A gateway's turns: it takes the list of partitions' numbers over, and adds to it.

It ends a turn by saying how far a majority of the stores has the list.  To take it over costs a
quarter of a second: a producer comes into the mesh, hears which stores there are, and asks them
three times.  So a gateway keeps its producer for a while, and takes its next turn with it unless
somebody else has taken the list over.  It need not be sure of that: what a life publishes that is
over is acknowledged by no majority.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from dafka_core.errors import NotAcknowledgedError
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.number_list import LIST, NumberList
from dafka_core.kafka.number_table import NumbersRecord, NumberTable
from dafka_core.kafka.refusal import RefusedError
from dafka_core.nodes.addresses import options_beside
from dafka_core.nodes.producer import Producer
from dafka_core.nodes.store_handle import StoreHandle

STORES_S: Final = 5.0
"""How long stores may take to answer, or to write a record, until it is said that they do not."""

TURN_S: Final = 2.0
"""How long another gateway's turn is waited for; it takes half a second.  One that has died in its
turn does not end it."""

KEPT_S: Final = 60.0
"""How long the producer is kept after a turn: topics mostly come together, or one with each job."""

Work = Callable[[NumberTable], Sequence[NumbersRecord]]
"""Says what is to be added to a table."""


class NumberTurns:
    """Takes turns, in one thread.

    Args:
        store: that of this gateway.
        numbers: the list, as it lies in the store's log.
        is_closing: whether the gateway ends, and nothing is waited for any more.
    """

    def __init__(
        self, store: StoreHandle, numbers: NumberList, is_closing: Callable[[], bool]
    ) -> None:
        self._store = store
        self._list = numbers
        self._is_closing = is_closing
        self._kept: Producer | None = None
        self._acks = 0  # what the kept one asks for
        self._kept_until = 0.0

    @property
    def majority(self) -> int:
        """How many of the stores that are known are more than half of them."""
        return (1 + len(self._store.known_stores)) // 2 + 1

    def take(self, work: Work) -> None:
        """Has what ``work`` says added to the list, and agreed on.

        Raises:
            RefusedError: too few stores are there, or the list has lost its beginning.
            DafkaError: the stores do not answer, or another gateway has begun its turn.
        """
        majority = self._wait_for_majority()
        self._let_others_end()
        producer = self._taken_over(majority)
        try:
            self._add(producer, work)
        except BaseException as error:
            self._end(error)
            raise
        self._kept_until = time.monotonic() + KEPT_S

    def look(self) -> None:
        """Ends a producer that was kept for long enough, or is one no more."""
        if self._kept is not None and (
            time.monotonic() >= self._kept_until or not self._is_ours(self._kept)
        ):
            self._end()

    def close(self) -> None:
        """Ends; in another thread only when this one does no more."""
        self._end()

    def _taken_over(self, majority: int) -> Producer:
        """A producer that goes on with the list: the one of the last turn, if it may be."""
        self.look()
        if self._acks != majority:
            self._end()
        if self._kept is None:
            self._kept, self._acks = self._producer(majority), majority
        return self._kept

    def _is_ours(self, producer: Producer) -> bool:
        _, role, _ = producer.parts
        return role.fenced_by is None and self._list.is_of(role.epoch.life)

    def _end(self, error: BaseException | None = None) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.__exit__(None, error, None)

    def _add(self, producer: Producer, work: Work) -> None:
        start = producer.next_offset
        begin = NumbersRecord(turn=secrets.token_hex(16)).packed()
        producer.publish(begin)
        producer.flush(STORES_S)
        # A majority has what comes before it, too; this store perhaps not yet.
        table = self._read_until(start, begin)
        if table.applied <= start:
            why = f"topic {LIST.topic!r} has been trimmed: its first records are missing"
            raise RefusedError(KafkaError.KAFKA_STORAGE_ERROR, why)
        records = work(table)
        if records:
            producer.publish_many([each.packed() for each in records])
            producer.flush(STORES_S)
        end = producer.next_offset
        close = NumbersRecord(agreed=end).packed()
        producer.publish(close)
        producer.flush(STORES_S)
        self._read_until(end, close)

    def _wait_for_majority(self) -> int:
        """How many stores have to take what is added; as many are there when this returns."""
        deadline = time.monotonic() + STORES_S
        while True:
            known, here = self._store.known_stores, self._store.stores_here
            majority = self.majority
            if 1 + len(here) >= majority:
                return majority
            if time.monotonic() >= deadline or self._is_closing():
                away = ", ".join(sorted(set(known) - here))
                why = (
                    f"{majority} of {1 + len(known)} stores have to agree on the partitions' "
                    f"numbers, and these are away: {away}; start them, or if they are gone for "
                    "ever, say so by 'dafka store forget'"
                )
                raise RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)
            time.sleep(0.05)

    def _let_others_end(self) -> None:
        deadline = time.monotonic() + TURN_S
        while not self._is_closing():
            self._list.read()
            began = self._list.open_since
            if began is None or time.monotonic() >= min(deadline, began + TURN_S):
                return
            time.sleep(0.02)

    def _producer(self, acks: int) -> Producer:
        given = options_beside(self._store.options)
        return Producer(
            LIST.topic,
            address=LIST.partition,
            **given | {"wait_for_tower": False, "tower_timeout_s": STORES_S},
            acks=acks,
            resume_timeout_s=STORES_S,
            close_timeout_s=STORES_S,
        )

    def _read_until(self, offset: int, content: bytes) -> NumberTable:
        """Waits until this store has the record, and takes what comes before it."""
        deadline = time.monotonic() + STORES_S
        while True:
            self._store.append_queue.wait(LIST, offset + 1, max(deadline - time.monotonic(), 0))
            found = self._store.log.read(LIST, offset, offset + 1)
            # It may have had another one there, of an older life, which it sets aside then.
            if found and found[0].values[0] == content:
                return self._list.read(offset + 1)
            if time.monotonic() >= deadline or self._is_closing():
                raise NotAcknowledgedError(*LIST, 1, STORES_S)
            time.sleep(0.02)
