"""The writers without stores: refusals, messages to the driver, and partition addresses."""

import pickle

import pytest

from dafka_core.errors import ConfigError
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.security.permissions import Permissions
from dafka_spark.errors import ColumnError
from dafka_spark.options import SinkOptions
from dafka_spark.schema import parse_ddl
from dafka_spark.sink.commit_coordinator import Application, own_address, partition_address
from dafka_spark.sink.staging import WrittenRange
from dafka_spark.sink.store_session import PickedStore
from dafka_spark.sink.writer import (
    BATCH_ID,
    QUERY_ID,
    DafkaBatchWriter,
    DafkaStreamWriter,
    TaskCommit,
)
from tests.unit.dafka_spark.tasks import Task

Writer = type[DafkaBatchWriter] | type[DafkaStreamWriter]

TO_T = SinkOptions.of({"topic": "t"})
VALUES = parse_ddl("value STRING")
IDS = {QUERY_ID: "q", BATCH_ID: "0"}
of_both = pytest.mark.parametrize("writer", [DafkaBatchWriter, DafkaStreamWriter])


@pytest.mark.parametrize(
    ("writer", "given", "why"),
    [
        (DafkaBatchWriter, {"audit": "true"}, "'audit' = 'true': is for streaming queries"),
        (DafkaStreamWriter, {"writerId": "w"}, "is for batch writes: a streaming query has"),
        (DafkaStreamWriter, {"txnAppId": "a", "txnVersion": "1"}, "is for batch writes: each mic"),
    ],
)
def test_options_of_the_other_kind_of_write_are_refused(
    writer: Writer, given: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        writer(VALUES, SinkOptions.of({"topic": "t", **given}))
    with pytest.raises(ColumnError, match="column 'value': is int, must be binary or string"):
        writer(parse_ddl("value INT"), TO_T)


def test_overwriting_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode\\('append'\\)"):
        DafkaBatchWriter(VALUES, TO_T, overwrite=True)


@of_both
def test_nothing_is_written_by_speculative_tasks_or_outside_of_tasks(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts of a task would write to one partition at a time."""
    with pytest.raises(RuntimeError, match="by Spark's tasks only"):
        writer(VALUES, TO_T).write(iter([]))
    for given in ("true", "TRUE"):
        Task(0, {"spark.speculation": given, **IDS}).begin(monkeypatch)
        with pytest.raises(ConfigError, match="set it false"):
            writer(VALUES, TO_T).write(iter([]))


@pytest.mark.parametrize("missing", IDS)
def test_a_micro_batch_needs_its_ids(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Task(0, {**IDS, missing: ""}).begin(monkeypatch)
    with pytest.raises(RuntimeError, match="no query id or no batch id"):
        DafkaStreamWriter(VALUES, TO_T).write(iter([]))


def test_a_task_commit_is_pickled() -> None:
    picked = PickedStore("A" * 32, (StoreLocation("A" * 32, ("grpc://127.0.0.1:1",)),))
    message = TaskCommit((WrittenRange(TopicPartition("t", "A"), 0, 1),), picked, "q")
    assert vars(pickle.loads(pickle.dumps(message))) == vars(message)


def test_addresses_are_stable() -> None:
    """A query that starts again, with any later release, must find its partitions."""
    assert partition_address("q", "t", 0) == "78311E34E56156E997FD5DB47EE34405"
    assert partition_address("q", "t\udcff", 0) == "1CE8CBA646BE5D169F06BB5B428B7D02"
    parts = [("q", "t", 0), ("q", "t", 1), ("q", "u", 0), ("r", "t", 0)]
    assert len({partition_address(*each) for each in parts}) == 4


def test_addresses_of_a_key_begin_with_its_prefix_unless_it_owns_earlier_ones() -> None:
    produce = frozenset({"produce"})
    owner = Permissions("etl", produce, prefix="A" * 12)
    application = Application("app", 1, "t", owner)
    made = {application.address(topic, task) for topic in "tuv" for task in range(300)}
    assert len(made) == 900
    (shared,) = {each[:22] for each in made}
    assert shared[:12] == owner.prefix
    other = Application("another", 1, "t", owner).address("t", 0)
    assert owner.owns(other)
    assert other[:22] != shared
    assert own_address(owner, "q", "t", 0) == "A" * 12 + partition_address("q", "t", 0)[12:]
    plain = Application("app", 1, "t").address("t", 0)
    heir = Permissions("heir", produce, addresses=(f"{plain[:16]}*",), prefix="B" * 12)
    assert Application("app", 1, "t", heir).address("t", 0) == plain
