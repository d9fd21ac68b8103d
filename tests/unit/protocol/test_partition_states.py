"""The roles follow the tables of docs/states.md."""

import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import pytest

from dafka_core.errors import DafkaError, FencedError, OffsetConflictError
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.log_entries import Commit, LogEntry, Stage
from dafka_core.model.records import PartitionLives, RecordBatch, StagedTransaction, Transaction
from dafka_core.protocol.messages import Head
from dafka_core.protocol.partition_fetcher import PartitionFetcher, ReorderBudget
from dafka_core.protocol.store_role import StoreRole
from scripts.states import PAGE, label, updated
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, values_of

ATTEMPT = "A" * 32
WALKS, STEPS = 2_500, 20

# Events, and actions, as the page names them.
HEAD = "a head arrives"
RECORDS = "records arrive"
TURN = "its turn to fetch"
TIME = "time passes"
PEER = "a peer connects again"
ROOM = "room ends or begins"
LOSS = "no node has the next records"
PUT = "a client writes records"
STAGE = "a client stages records"
COMMIT = "a client commits"
OUTCOME = "the log reports the outcome"
TAKE, LEAVE, REFUSE = "accepts them", "fetches them later", "refuses them"
ASK_NEXT, ASK_AGAIN = "requests the next block", "repeats the request"


class Reaction(NamedTuple):
    """The states that may follow, and the role's action."""

    then: set[str]
    action: str = ""


Table = dict[tuple[str, str], Reaction]  # by state and event

Seen = dict[tuple[str, str], set[str]]


def table_of(section: str) -> Table:
    """Return a table of the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1]
    lines = re.findall(r"^\| (.+) \|$", text.split("\n## ")[0], re.MULTILINE)
    (_, _, *events), _, *rows = (line.split(" | ") for line in lines)
    table: Table = {}
    for state, _, *cells in rows:
        for event, cell in zip(events, cells, strict=True):
            *actions, then = cell.split(" → ")
            states = {state} if then == "—" else set(then.split(", "))
            table[state, event] = Reaction(states, *actions)
    return table


STORE_TABLE, FETCH_TABLE = table_of("A partition in a store"), table_of("A partition in a consumer")


def test_the_page_shows_the_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert updated(text) == text, "run python scripts/states.py"


def check(table: Table, seen: Seen) -> None:
    """Compare observed transitions with the table, exactly."""
    wrong = {key: (seen[key], then) for key, (then, _) in table.items() if seen[key] != then}
    assert wrong == {}, "seen, expected"


class StoreWalk:
    """A store with one partition, to which anything happens; its log agrees to it or not."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.held = 0  # and what is staged beyond it, by another store or by the attempt:
        self.part_end = self.attempt_end = -1
        self.under_way: list[LogEntry] = []
        self.role = StoreRole(
            "S", lambda tp: PartitionLives(self.held, (), NO_LIFE), sync_interval_s=1.0
        )
        self.role.on_message(0.0, Head(TOPIC, PARTITION, 0), "")
        self.role.on_batch(0.0, "", batch_of(0, 1))
        self.outcome()
        self.outcome()

    @property
    def state(self) -> str:
        partition = self.role.partitions[TP]
        if partition.is_committing:
            return "committing"
        if partition.staged is not None:
            return "in part"
        return "behind" if partition.next_offset < partition.head else "following"

    def step(self) -> str:
        event = self.chance.choice([HEAD, RECORDS, RECORDS, PUT, STAGE, COMMIT, OUTCOME])
        next_offset = self.role.next_offset(TP)
        start = max(next_offset + self.chance.choice([-1, 0, 0, 0, 1, 3]), 0)
        batch = batch_of(start, start + self.chance.choice([1, 2, 5]))
        action = STORE_TABLE[self.state, event].action
        pending = list(self.role.pending)
        if event == HEAD:
            self.role.on_message(0.0, Head(TOPIC, PARTITION, start), "")
        elif event == RECORDS:
            self.role.on_batch(0.0, "", self.perhaps_of_transaction(batch))
            assert action in (TAKE, LEAVE)
            assert action == TAKE or self.role.pending == pending
        elif event == PUT:
            taken = self.role.host(0.0, batch)
            is_taken = isinstance(taken, RecordBatch)
            assert is_taken == (action != REFUSE and batch.offset == next_offset)
        elif event == STAGE:
            assert self.role.stage(Stage(batch, ATTEMPT))
        elif event == COMMIT:
            staged = StagedTransaction(*TP, ATTEMPT, batch.offset, batch.end, 1)
            assert self.role.commit(0.0, Commit((staged,)))
        elif event == OUTCOME:
            self.outcome()
        return event

    def perhaps_of_transaction(self, batch: RecordBatch) -> RecordBatch:
        """Mostly of a transaction that extends before or after the batch."""
        before, behind = self.chance.choice([(0, 0), (0, 3), (2, 3), (2, 0)])
        start = max(batch.offset - before, 0)
        if self.chance.random() < 0.3:
            return batch
        transaction = Transaction(1, start, batch.end + behind)
        return RecordBatch(TP, batch.offset, values_of(batch.offset, batch.end), transaction)

    def outcome(self) -> None:
        """The log is done with a group, of which it refused some, and takes the next one."""
        entries, self.under_way = self.under_way, self.role.take_pending()
        outcomes = [self.written(entry) for entry in entries]
        self.role.on_stored(entries, outcomes)

    def written(self, entry: LogEntry) -> DafkaError | None:
        """Return the outcome of an entry by ``log_entries``; a batch may fail for other reasons."""
        match entry:
            case RecordBatch():
                if entry.offset not in (self.held, self.part_end) or self.chance.random() < 0.2:
                    return OffsetConflictError(TOPIC, PARTITION, entry.offset, self.held)
                self.part_end, self.attempt_end = entry.end, -1
                if entry.transaction is None or entry.end >= entry.transaction.end:
                    self.held = entry.end
            case Stage(batch=batch):
                if batch.offset not in (self.held, self.attempt_end):
                    return OffsetConflictError(TOPIC, PARTITION, batch.offset, self.held)
                self.part_end, self.attempt_end = -1, batch.end
            case Commit(transactions=(staged,)):
                if (staged.start, staged.end) != (self.held, self.attempt_end):
                    return FencedError(TOPIC, PARTITION, ATTEMPT)
                self.held, self.attempt_end = staged.end, -1
        return None


class FetchWalk:
    """A consumer's partition, to which anything happens."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.room = True
        self.fetcher = PartitionFetcher(TP, 0, ReorderBudget())

    @property
    def state(self) -> str:
        return label(self.fetcher.state(self.now, self.room))

    def step(self) -> str:
        event = self.chance.choice([HEAD, RECORDS, RECORDS, TURN, TURN, TIME, PEER, ROOM, LOSS])
        action = FETCH_TABLE[self.state, event].action
        start = max(self.fetcher.next_offset + self.chance.choice([-5, 0, 0, 1, 300, 3_000]), 0)
        if event == HEAD:
            self.fetcher.raise_head(start)
        elif event == RECORDS:
            batch = batch_of(start, start + self.chance.choice([1, 500, 5_000]))
            if action == TAKE:
                self.fetcher.take(self.now, batch)
            else:
                self.fetcher.give_back(batch)
        elif event == TURN:
            asked = self.fetcher.claim(self.now, self.fetcher.state(self.now, self.room))
            assert (asked is not None) == (action in (ASK_NEXT, ASK_AGAIN))
            assert action != ASK_AGAIN or asked is None or asked[0] == self.fetcher.next_offset
        elif event == TIME:
            self.now += self.chance.choice([0.1, 1.0, 8.0])
        elif event == PEER:
            self.fetcher.retry_unanswered()
        elif event == ROOM:
            self.room = not self.room
        elif event == LOSS and action:
            # Only a partition that fetches detects a loss, and continues at kept records at the
            # latest.
            start, end = self.fetcher.next_offset, self.fetcher.gap_end()
            self.fetcher.advance(self.chance.choice([start, (start + end) // 2, end]))
        return event


@pytest.mark.parametrize(
    ("table", "walk_of"),
    [(STORE_TABLE, StoreWalk), (FETCH_TABLE, FetchWalk)],
    ids=["store", "fetch"],
)
def test_a_partition_follows_its_state_table(
    table: Table, walk_of: Callable[[random.Random], StoreWalk | FetchWalk]
) -> None:
    chance = random.Random(1)
    seen: Seen = defaultdict(set)
    for _ in range(WALKS):
        walk = walk_of(chance)
        for _ in range(STEPS):
            before = walk.state
            seen[before, walk.step()].add(walk.state)
    check(table, seen)
