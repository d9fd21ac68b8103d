"""Leaders: what a new one takes from journals, and a model of many that follow each other."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from dafka_core.errors import DiskFullError
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import PartitionInfo, PartitionLives, TopicPartition
from dafka_kafka import leaders
from dafka_kafka.errors import RefusedError
from dafka_kafka.leaders import (
    JOURNAL_TOPIC,
    Journal,
    JournalRecord,
    Known,
    Leaders,
    Term,
    recovered,
    states_until,
    summaries,
)
from dafka_kafka.producer_states import ProducerState, WrittenBatch
from dafka_kafka.registry_table import Lead
from tests.unit.kafka import leaders_model
from tests.unit.kafka.leaders_model import STORES, Gateway, Model

TP = TopicPartition("t", "A" * 32)
OLD, LIFE, NEW, MAX = (EpochId(number, number, 2) for number in (1, 2, 3, 9))
LEAD = Lead("S0", "S0", LIFE, STORES, 4)


def state(*batches: tuple[int, int, int], epoch: int = 0) -> bytes:
    return ProducerState(epoch, tuple(map(WrittenBatch._make, batches)), 0).packed()


def record(
    end: int, start: int = 0, life: EpochId = LIFE, *, whole: bool = False, **notes: bytes | None
) -> JournalRecord:
    return JournalRecord(*TP, life, start, end, notes, whole)


def known(told: list[JournalRecord], last: EpochId, end: int = 99) -> Known | None:
    return recovered(summaries(told, MAX).get(TP, {}), end, last)


def test_a_journal_without_a_whole_state_describes_no_record() -> None:
    nothing = Known(0, 0, {})
    assert known([], LIFE) == nothing
    assert known([record(5), record(7)], LIFE) == nothing


def test_records_are_known_up_to_the_end_in_the_newest_journal() -> None:
    told = [record(5, 5, whole=True), record(7, 5), record(9, 5)]
    assert known(told, LIFE) == Known(9, 9, {})
    assert known(told, LIFE, 8) == Known(8, 8, {})  # the others have not arrived
    assert known(told, OLD) == Known(5, 5, {})  # what is behind was never this leader's
    # A life whose state is not whole has written nothing.
    assert known([*told, record(20, 3, NEW)], LIFE) == Known(9, 9, {})
    newer = [*told, record(6, 6, NEW, whole=True)]
    assert known(newer, LIFE) == known(newer, NEW) == Known(6, 6, {})
    assert summaries(newer, NEW).keys() == {TP}
    assert summaries(newer, NEW)[TP].keys() == {LIFE}


def test_records_that_the_owner_has_written_without_a_leader_are_in_no_journal() -> None:
    alone = EpochId(9, 9, 1)
    told = [record(5, 5, whole=True, p=state((0, 0, 4))), record(7, 5)]
    assert known([], alone) is None
    assert known(told, alone) is None
    assert known(told, EpochId(1, 1, 1)) == Known(5, 5, {"p": state((0, 0, 4))})
    assert known([], NO_LIFE) is None
    assert known([], NO_LIFE, 0) == Known(0, 0, {})


def test_the_newest_state_of_a_producer_counts() -> None:
    early, late = state((0, 0, 5)), state((0, 0, 5), (1, 1, 6))
    told = [record(6, 5, whole=True, p=early, q=early), record(7, 5, p=late), record(7, 5, q=None)]
    assert known(told, LIFE) == Known(7, 7, {"p": late})
    # A journal that was written anew has older states behind newer ones.
    assert known([*told, record(6, 5, whole=True, p=early)], LIFE) == Known(7, 7, {"p": late})
    other_epoch = state((0, 0, 3), epoch=1)
    assert known([*told, record(7, 5, p=other_epoch)], LIFE) == Known(7, 7, {"p": other_epoch})


def test_batches_beyond_the_end_are_forgotten() -> None:
    states = {"p": state((0, 1, 5), (2, 3, 7)), "q": state((0, 0, 8))}
    assert states_until(9, states) == states
    assert states_until(8, states) == {"p": state((0, 1, 5))}


def test_a_record_is_covered_when_a_majority_has_its_journal() -> None:
    term = Term(LEAD, {TP: Known(10, 10, {})})
    assert term.watermark(TP, 12, 3, 2) == 10
    assert term.watermark(TP, 17, 5, 2) == 10
    assert term.marks == {TP: (10, 12, 3)}
    assert term.watermark(TP, 17, 5, 4) == 12
    assert term.watermark(TP, 18, 6, 5) == 17
    assert term.watermark(TP, 18, 6, 6) == 18
    assert term.watermark(TP, 18, 9, 8) == 18
    other = TopicPartition("t", "B" * 32)
    assert term.watermark(other, 5, 1, 1) == 5


def test_a_partition_that_was_made_in_a_term_begins_with_its_first_record() -> None:
    term = Term(LEAD, {TP: Known(5, 5, {})})
    other = TopicPartition("t", "B" * 32)
    assert (term.start(TP), term.start(other)) == (5, 0)
    written = Future[int]()
    assert term.entries(TP, 7, {}, written) == [(record(7, 5), written)]
    assert [each.record.whole for each in term.entries(other, 2, {}, written)] == [True]
    notes = {f"{number}": b"" for number in range(150)}
    assert [len(each.record.notes) for each in term.entries(TP, 7, notes, written)] == [100, 50]
    assert term.epoch(6)[:4] == (*LIFE, 6)
    assert (LEAD.majority, LEAD.is_movable) == (2, True)
    assert not Lead("S0", "S0", LIFE, STORES[:2]).is_movable


@pytest.mark.parametrize("batch_fails", [True, False])
def test_a_leader_stops_when_the_disk_has_a_batch_or_its_journal_only(batch_fails: bool) -> None:
    store: Any = SimpleNamespace(address="A" * 32)
    batch, written, failures = Future[int](), Future[int](), list[int]()
    entries = Term(LEAD, {}).entries(TP, 3, {}, batch)
    addition = Journal(store).addition(entries, lambda: failures.append(1))
    placed = addition.place(4, 0, written)
    assert not isinstance(placed, Future)
    assert (placed.tp, placed.offset, placed.count) == ((JOURNAL_TOPIC, "A" * 32), 4, 1)
    error = DiskFullError("/", "full")
    for each, fails in ((batch, batch_fails), (written, not batch_fails)):
        each.set_exception(error) if fails else each.set_result(1)
    assert failures == [1]


def test_a_batch_that_is_refused_at_once_has_no_journal() -> None:
    store: Any = SimpleNamespace(address="A" * 32)
    batch, written = Future[int](), Future[int]()
    batch.set_exception(ValueError())
    entries = Term(LEAD, {}).entries(TP, 3, {}, batch)
    placed = Journal(store).addition(entries, lambda: pytest.fail("nothing is written")).place
    assert placed(4, 0, written) is written
    assert written.result() == 4


class Cluster:
    """Two other stores, of which the first has a gateway, around the leaders of S0."""

    def __init__(self) -> None:
        self.leads: dict[str, Lead] = {}
        self.newest: dict[str, EpochId] = {}
        self.live = ["S0", "S1"]
        self.names = ["S1", "S2"]
        self.copied = 10**6  # of each partition, at the other stores
        self.elections = 0
        self.failure: Exception | None = None  # of the next steps after an election
        self.announced = 0
        none: Any = SimpleNamespace()
        lives = PartitionLives(7, (), NO_LIFE)
        log = SimpleNamespace(
            end=lambda tp: 7,
            lives=lambda tp: lives,
            info=lambda tp: PartitionInfo(tp.topic, tp.partition, 0, 7),
        )
        address = SimpleNamespace(address="S0")
        store: Any = SimpleNamespace(address="S0", log=log, known=self)
        gateways: Any = SimpleNamespace(
            own=address,
            live=lambda: [SimpleNamespace(address=each) for each in self.live],
            chosen=lambda owner: address,
            announce=self.announce,
        )
        registry: Any = SimpleNamespace(
            table=self,
            log=SimpleNamespace(life=lambda owner: self.newest.get(owner, NO_LIFE)),
            owned=lambda owner: [SimpleNamespace(tp=TP, hosted=True)],
            lead=self.propose,
        )
        replication: Any = SimpleNamespace(
            use=lambda: None, watermark=lambda tp, end, copies, lead=None: min(end, self.copied)
        )
        self.leaders = Leaders(store, registry, gateways, replication)
        self.leaders.journal = none
        none.append, none.tp = self.step, TopicPartition(JOURNAL_TOPIC, "S0")

    @property
    def endpoints(self) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(self.names, ("",))

    def announce(self, *, again: bool) -> None:
        self.announced += again

    def propose(self, lead: Lead, previous: Lead | None) -> Future[None]:
        done = Future[None]()
        assert previous == self.leads.get(lead.owner)
        self.elections += 1
        self.leads = {**self.leads, lead.owner: lead._replace(offset=self.elections)}
        self.newest[lead.owner] = lead.life
        done.set_result(None)
        return done

    def step(self, *of: Any) -> None:
        if self.failure is not None:
            raise self.failure

    def due(self, after_s: float = 0.0) -> set[str]:
        return {*self.leaders._due(100.0 + after_s)}

    def lead(self, owner: str) -> None:
        self.leaders._retry_s.clear()
        self.leaders._step({owner: self.leaders._due(1e9)[owner]})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(Leaders, "_gather", lambda self, lead, **options: None)
    monkeypatch.setattr(Leaders, "_recover", lambda self, lead: {TP: Known(7, 7, {})})
    monkeypatch.setattr(leaders, "SPREAD_S", 0.0)
    monkeypatch.setattr(Journal, "count", 0, raising=False)
    made = Cluster()
    made.leaders.journal.count = 0  # type: ignore[misc]
    return made


def test_a_failed_attempt_is_continued_without_another_election(cluster: Cluster) -> None:
    cluster.leads = {"S1": Lead("S1", "S1", LIFE, STORES)}
    cluster.live = ["S0"]
    assert cluster.due() == {"S0"}
    assert cluster.due(6) == {"S0", "S1"}
    cluster.failure = RefusedError(0, "too slow")
    for _ in range(3):
        cluster.lead("S1")
        assert "S1" in cluster.due(6)  # at once
    assert cluster.elections == 1
    cluster.failure = None
    cluster.lead("S1")
    term = cluster.leaders.term("S1")
    assert term is not None
    assert (cluster.elections, term.lead) == (1, cluster.leads["S1"])
    # In a life in which it may have written, it would not find its own records.
    cluster.leaders._terms.clear()
    assert "S1" not in cluster.due(6)
    assert "S1" in cluster.due(12)
    cluster.lead("S1")
    assert cluster.elections == 2


def test_an_owner_does_not_write_beside_a_leader_that_may_be_committed(cluster: Cluster) -> None:
    assert cluster.leaders.term("S0") is None
    cluster.newest["S0"] = LIFE  # its commit is on its way
    with pytest.raises(RefusedError):
        cluster.leaders.term("S0")
    cluster.leads = {"S0": Lead("S0", "S1", LIFE, STORES)}
    with pytest.raises(RefusedError, match="S1"):
        cluster.leaders.term("S0")
    cluster.lead("S0")
    assert cluster.leaders.term("S0") is not None
    assert cluster.announced == 1


def test_a_leader_writes_while_a_new_store_receives_its_records(cluster: Cluster) -> None:
    cluster.lead("S0")
    term = cluster.leaders.term("S0")
    cluster.names, cluster.copied = ["S1", "S2", "S3"], 5
    cluster.lead("S0")
    assert cluster.leaders.term("S0") is term
    assert cluster.elections == 1
    cluster.copied = 10
    cluster.lead("S0")
    assert cluster.leads["S0"].stores == ("S0", "S1", "S2", "S3")
    assert cluster.leaders.term("S0") not in (None, term)


def test_a_leader_of_others_partitions_counts_a_new_store_too(cluster: Cluster) -> None:
    cluster.leads = {"S1": Lead("S1", "S1", LIFE, STORES)}
    cluster.live = ["S0"]
    cluster.due()
    cluster.lead("S1")
    cluster.names = ["S1", "S2", "S3"]
    cluster.lead("S1")
    assert cluster.leads["S1"].stores == ("S0", "S1", "S2", "S3")
    cluster.names = ["S2"]  # if it left them now, their owner might return without its records
    assert "S1" not in cluster.due()
    assert cluster.leaders.term("S1") is not None


def test_an_owner_writes_again_although_a_majority_is_forgotten(cluster: Cluster) -> None:
    cluster.leads = {"S0": Lead("S0", "S1", LIFE, STORES)}
    cluster.names = ["S2"]
    assert cluster.leaders._due(0)["S0"] == STORES  # both have to answer
    cluster.names = []
    cluster.lead("S0")
    assert cluster.leads["S0"].stores == ("S0",)
    assert cluster.leaders.term("S0") is None


def test_of_two_stores_each_owner_writes_without_a_leader(cluster: Cluster) -> None:
    cluster.names = ["S1"]
    assert cluster.due() == set()
    cluster.names = ["S1", "S2"]
    cluster.lead("S0")
    cluster.names = ["S1"]  # the other one is forgotten
    cluster.lead("S0")
    assert not cluster.leads["S0"].is_movable
    assert cluster.leaders.term("S0") is None
    assert cluster.due() == set()


def run(seed: int) -> Model:
    """Simulate a cluster, first with faults and then without, and check it."""
    model = Model(seed)
    for _ in range(1_500):
        model.step()
    for _ in range(6_000):
        model.step(is_calm=True)
        if model.leader is not None and model.random.random() < 0.01:
            break
    assert model.leader is not None
    model.check()
    return model


@pytest.mark.parametrize(
    "seeds",
    [
        range(100),
        *(pytest.param(range(n, n + 500), marks=pytest.mark.nightly) for n in range(0, 5_000, 500)),
    ],
)
def test_nothing_is_lost_doubled_or_changed_whoever_leads(seeds: range) -> None:
    models = [run(seed) for seed in seeds]
    for counts in zip(*((m.leads, m.acknowledged, m.seen) for m in models), strict=True):
        assert sum(map(len, counts)) > 200


def without_fence(gateway: Gateway, lead: Lead, report: Any) -> bool:
    return True


def without_states(end: int, states: Any) -> dict[str, bytes]:
    return {}


def without_cap(lives: Any, end: int, last: EpochId) -> Known | None:
    found = recovered(lives, end, last)
    return found and Known(end, end, found.states)


def without_gathering(gateway: Gateway, other: Any) -> bool:
    return True


def without_trim(end: int, states: Any) -> dict[str, bytes]:
    return dict(states)


def without_journal(gateway: Gateway, report: Any, end: int, journal_end: int) -> bool:
    return bool(report.same(gateway.disk.history) >= end)


@pytest.mark.parametrize(
    ("target", "name", "defect"),
    [
        (Gateway, "confirms", without_fence),
        (Gateway, "has", without_gathering),
        pytest.param(Gateway, "is_covered", without_journal, marks=pytest.mark.nightly),
        (leaders_model, "recovered", without_cap),
        (leaders, "states_until", without_states),
        (leaders, "states_until", without_trim),
    ],
)
def test_a_defect_is_found(
    monkeypatch: pytest.MonkeyPatch, target: Any, name: str, defect: Callable[..., Any]
) -> None:
    monkeypatch.setattr(target, name, defect)

    def run_all() -> None:
        for seed in range(300):
            run(seed)

    with pytest.raises(AssertionError):
        run_all()
