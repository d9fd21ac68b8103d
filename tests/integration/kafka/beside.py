"""One Kafka server, a gateway or Apache Kafka's broker, and what it answers to raw requests."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from dafka_core.system.hosts import HostPort, host_port
from dafka_core.testing.waiting import wait_until
from dafka_kafka.errors import KafkaError
from dafka_kafka.records.formats import decode_batches
from tests.integration.kafka.one_request import told
from tests.unit.kafka.records.batches import Parts, by_aiokafka

CLOSED: Final = "closed"  # the server closed the connection instead of an answer

Headers = Sequence[tuple[str, bytes | None]]
Record = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp, key, value and headers."""


class Server:
    """A server that is asked for one partition of one topic at a time."""

    def __init__(self, servers: str) -> None:
        self._where: HostPort = host_port(servers, 9092)

    def ask(self, name: str, version: int, /, **fields: Any) -> Any:
        """Return the response to request ``name`` as plain values; errors by their names."""
        try:
            return _plain(told(self._where, name, version, **fields).to_dict(json=False))
        except EOFError:
            return CLOSED

    def create(self, topic: str, **configs: str | None) -> Any:
        """Create a topic with one partition, and wait until it is served; return the error."""
        made = {
            "name": topic,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        asked = self.ask("CreateTopics", 4, topics=[made], timeout_ms=30_000, validate_only=False)
        error = asked["topics"][0]["error_code"]
        if error == "NONE":
            wait_until(lambda: self.fetch(topic, 0, max_wait_ms=0)["error_code"] == "NONE")
        return error

    def node_id(self) -> str:
        return str(self.ask("Metadata", 8, topics=[])["brokers"][0]["node_id"])

    def coordinate(self, group: str) -> None:
        """Wait until the server coordinates a group."""

        def is_coordinated() -> bool:
            found = self.ask("FindCoordinator", 2, key=group, key_type=0)["error_code"]
            asked = self.ask("OffsetFetch", 5, group_id=group, topics=None)["error_code"]
            return (found, asked) == ("NONE", "NONE")

        wait_until(is_coordinated)

    def produce(self, topic: str, octets: bytes | None, version: int = 8, **fields: Any) -> Any:
        """Write records; return the partition's response."""
        part = {"name": topic, "partition_data": [{"index": 0, "records": octets}]}
        rest = {"transactional_id": None, "acks": -1, "timeout_ms": 30_000} | fields
        answer = self.ask("Produce", version, topic_data=[part], **rest)
        return answer if answer == CLOSED else answer["responses"][0]["partition_responses"][0]

    def fetch(self, topic: str, offset: int, version: int = 11, **fields: Any) -> Any:
        """Read records; return the partition's response, with its records as bytes."""
        place = {
            "partition": fields.pop("partition", 0),
            "fetch_offset": offset,
            "partition_max_bytes": fields.pop("partition_max_bytes", 1 << 20),
        }
        rest: dict[str, Any] = {
            "replica_id": -1,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 50 << 20,
        }
        rest |= {"session_epoch": -1, "rack_id": "", "forgotten_topics_data": []} | fields
        topics = [{"topic": topic, "partitions": [place]}]
        answer = self.ask("Fetch", version, topics=topics, **rest)
        return answer if answer == CLOSED else answer["responses"][0]["partitions"][0]

    def records(self, topic: str, offset: int = 0, **fields: Any) -> list[Any]:
        """Return the timestamps, keys, values and headers that Fetch returns."""
        return [*records_of(self.fetch(topic, offset, **fields)["records"])]


def records_of(octets: bytes | None) -> Iterator[tuple[Any, ...]]:
    """Decode fetched records of any version, and ignore a truncated last batch."""
    for batch in decode_batches(octets or b""):
        none = pa.nulls(len(batch.values))
        columns = batch.values, batch.keys or none, batch.headers or none
        values, keys, headers = (each.to_pylist() for each in columns)
        rows = zip(batch.offsets, batch.timestamps_ms, keys, values, headers, strict=True)
        for offset, stamp, key, value, pairs in rows:
            found = [(each["key"], each["value"]) for each in pairs or ()]
            yield int(offset), int(stamp), key, value, found


def batch_of(records: Sequence[Record], codec: int = 0) -> bytes:
    """Encode a record batch of version 2."""
    parts = [Parts(key, value, tuple(named), at) for at, key, value, named in records]
    return by_aiokafka(parts, codec)


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _plain(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if name == "error_code":
        return KafkaError(value).name if value in [*KafkaError] else value
    return value
