"""``dafka topics`` and ``dafka heads``: what the stores hold."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import Topic
from dafka_core.errors import DafkaError
from dafka_core.records import PartitionInfo

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object on each line.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout-s", min=0.01, metavar="NUMBER", help="How long to wait for stores."),
]


def topics(*, as_json: AsJson = False, timeout_s: Timeout = 10.0, **options: Any) -> None:
    """List the topics that stores have: partitions and records of each."""
    partitions, records = Counter[str](), Counter[str]()
    for info in _partitions(None, timeout_s, options):
        partitions[info.topic] += 1
        records[info.topic] += info.end - info.earliest
    if not partitions:
        output.say("the stores have no records yet")
    rows = [(topic, partitions[topic], records[topic]) for topic in sorted(partitions)]
    output.table(("topic", "partitions", "records"), rows, as_json=as_json)


def heads(
    topic: Topic, *, as_json: AsJson = False, timeout_s: Timeout = 10.0, **options: Any
) -> None:
    """List a topic's partitions: the first offset stores have, and the next one to be written."""
    partitions = _partitions([topic], timeout_s, options)
    if not partitions:
        raise DafkaError(f"no store has records of topic {topic!r}; 'dafka topics' lists all")
    rows = sorted(info[1:] for info in partitions)
    output.table(("partition", "earliest", "next"), rows, as_json=as_json)


def _partitions(
    topics: list[str] | None, timeout_s: float, options: dict[str, Any]
) -> list[PartitionInfo]:
    from dafka_core import Reader

    with Reader(**options) as reader:
        return reader.partitions(topics, timeout_s=timeout_s)
