"""Transactions, staged and committed at a store over Arrow Flight."""

import uuid
from collections.abc import Sequence

import pyarrow as pa

from dafka_core import EmbeddedCluster, Store
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import NO_VERSION, StagedTransaction, TopicPartition, TransactionState
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S

TOPIC = "t"
PARTITION = "9A3F8E1BBB578999443B8818C5851AFC"
TP = TopicPartition(TOPIC, PARTITION)
OTHER = "0B3F8E1BBB578999443B8818C5851AFC"


def new_attempt() -> str:
    return uuid.uuid4().hex.upper()


def client_of(store: Store) -> StoreClient:
    return StoreClient(StoreLocation(store.address, store.locations))


def client_in(cluster: EmbeddedCluster, index: int = 0) -> StoreClient:
    """Of the store that runs there now."""
    return StoreClient(StoreLocation("", cluster.locations(index)))


def array(start: int, end: int) -> pa.BinaryArray:
    return pa.array(values(end - start, start), pa.binary())


def stage(
    client: StoreClient,
    attempt: str,
    start: int,
    end: int,
    number: int = NO_VERSION,
    partition: str = PARTITION,
) -> StagedTransaction:
    """Stage the records ``[start, end)``; return what to commit."""
    tp = TopicPartition(TOPIC, partition)
    with client.put(tp, start, attempt=attempt, version=number, timeout_s=PATIENCE_S) as put:
        put.write(array(start, end))
        assert put.finish(PATIENCE_S) == end
    return StagedTransaction(TOPIC, partition, attempt, start, end, number)


def commit(client: StoreClient, *transactions: StagedTransaction) -> None:
    client.commit(transactions, timeout_s=PATIENCE_S)


def write(client: StoreClient, start: int, end: int, number: int = NO_VERSION) -> StagedTransaction:
    """Stages and commits a transaction as a new attempt."""
    transaction = stage(client, new_attempt(), start, end, number)
    commit(client, transaction)
    return transaction


def put(client: StoreClient, start: int, end: int) -> None:
    """Puts the records ``[start, end)``, visible at once."""
    with client.put(TP, start, timeout_s=PATIENCE_S) as plain:
        plain.write(array(start, end))
        assert plain.finish(PATIENCE_S) == end


def read(client: StoreClient, end: int, partition: str = PARTITION) -> list[bytes]:
    """The records ``[0, end)``."""
    batches = client.read(
        TopicPartition(TOPIC, partition),
        0,
        end,
        times=False,
        max_records=65_536,
        max_bytes=8 << 20,
        timeout_s=PATIENCE_S,
    )
    return [value for batch in batches for value in batch.values]


def ends(client: StoreClient, topics: Sequence[str] | None = None) -> list[int]:
    return [info.end for info in client.heads(topics, timeout_s=PATIENCE_S)]


def state_of(client: StoreClient, partition: str = PARTITION) -> TransactionState:
    """Return the state of the partition's transactions."""
    (found,) = client.transaction_states([TopicPartition(TOPIC, partition)], timeout_s=PATIENCE_S)
    return found
