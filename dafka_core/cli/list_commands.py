"""``dafka topics`` and ``dafka heads``: what the stores have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import Topic, Towers, joined
from dafka_core.errors import DafkaError
from dafka_core.records import PartitionInfo

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object on each line.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout-s", min=0.01, metavar="NUMBER", help="How long to wait for stores."),
]


def topics(
    *, tower: Towers = None, as_json: AsJson = False, timeout_s: Timeout = 10.0, **options: Any
) -> None:
    """List the topics that stores have: partitions and records of each."""
    totals: dict[str, list[int]] = {}
    for partition in _partitions(None, joined(tower), timeout_s, options):
        total = totals.setdefault(partition.topic, [0, 0])
        total[0] += 1
        total[1] += partition.end - partition.earliest
    if not totals:
        output.say("the stores have no records yet")
    rows = [(name, *total) for name, total in sorted(totals.items())]
    output.table(("topic", "partitions", "records"), rows, as_json=as_json)


def heads(
    topic: Topic,
    *,
    tower: Towers = None,
    as_json: AsJson = False,
    timeout_s: Timeout = 10.0,
    **options: Any,
) -> None:
    """List a topic's partitions: the first offset stores have, and the next one to be written."""
    partitions = _partitions([topic], joined(tower), timeout_s, options)
    if not partitions:
        raise DafkaError(f"no store has records of topic {topic!r}; 'dafka topics' lists all")
    rows = sorted(partition[1:] for partition in partitions)
    output.table(("partition", "earliest", "next"), rows, as_json=as_json)


def _partitions(
    topics: list[str] | None, tower: str | None, timeout_s: float, options: dict[str, Any]
) -> list[PartitionInfo]:
    from dafka_core import Reader

    with Reader(tower=tower, **options) as reader:
        return reader.partitions(topics, timeout_s=timeout_s)
