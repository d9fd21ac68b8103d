"""Snapshots of clusters that need not run."""

from dafka_console.snapshot import RECORDS, PartitionTable, Snapshot, StoreState, TimeSeries
from dafka_core.model.records import KnownStore, Neighbour, PartitionInfo
from dafka_core.storage import PartitionStatistics
from dafka_core.storage.environment import Space

ONE, TWO, GONE = "1" * 32, "2" * 32, "3" * 32
A, B = "A" * 32, "B" * 32
US = 1_700_000_000_000_000
"""When everything was written."""


def info(topic: str, partition: str, end: int, earliest: int = 0) -> PartitionInfo:
    return PartitionInfo(topic, partition, earliest, end)


def fact(topic: str, partition: str, records: int, size: int) -> PartitionStatistics:
    client = "host-7:4711" if partition == A else ""
    return PartitionStatistics(topic, partition, 0, records, records, size, US, US, client)


def table() -> PartitionTable:
    """Two stores, two topics: ``t`` with two partitions, of which store two has half of one."""
    made = PartitionTable()
    made.hear(ONE, [info("t", A, 100), info("t", B, 10), info("__dafka.q", A, 7)], complete=True)
    made.hear(TWO, [info("t", A, 50)], complete=True)
    made.learn([fact("t", A, 100, 1_000), fact("t", B, 10, 1_000)])
    return made


def snapshot() -> Snapshot:
    """Return it one second later, with ten records more."""
    made = table()
    made.tick(1.0, US)
    made.hear(ONE, [info("t", A, 110)], complete=False)
    records, _ = made.tick(1.0, US + 1_000_000)
    columns, rates = made.columns(), TimeSeries()
    rates.add(US / 1e6 + 1, [RECORDS, *columns.topics], [records, *columns.topic_rates])
    return Snapshot(
        2,
        US / 1e6 + 1,
        0.01,
        columns,
        (
            StoreState(ONE, ("grpc://h:1",), True, "", Space(4096, 1024, 1, 2.5), 3, 0, 0.002),
            StoreState(TWO, ("grpc://h:2",), True, "", None, 1, columns.behind(TWO)),
        ),
        (Neighbour(A, "producer", "tcp://h:3", True), Neighbour(ONE, "store", "tcp://h:4", True)),
        ("127.0.0.1:5556:5557",),
        "9" * 32,
        (KnownStore(GONE, "tcp://h:5", US),),
        rates=rates,
    )
