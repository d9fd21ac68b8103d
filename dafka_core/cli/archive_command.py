"""``dafka archive``: copies a topic's records from stores to Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from dafka_core.cli import flags, output, store_clients
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.errors import DafkaError
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.positions import parse_time_us
from dafka_core.model.records import PartitionInfo, RecordBatch, merge_heads

if TYPE_CHECKING:
    from dafka_core.archive.archive import Added, ArchiveWriter, Wanted
    from dafka_core.archive.manifest import ArchivedFile
    from dafka_core.flight.store_client import StoreClient

NOW: Final = "now"


def _parse_before(text: str) -> int:
    try:
        return parse_time_us("0s" if text == NOW else text)
    except ValueError as error:
        raise ValueError(f"{error}, or {NOW}") from None


@flags.topic_argument
@flags.option(
    "--dir",
    "archive_directory",
    is_setting=False,  # in a file, `dir` is a store's
    required=True,
    metavar="DIR",
    help="The archive's directory.",
)
@flags.option(
    "--before",
    type=flags.Parsed(_parse_before),
    metavar="TIME",
    help="Only records published before it: 2026-01-31, 2026-01-31T12:00:00Z, or now. "
    "Default: the start of the current day in UTC, so that each archived day is complete.",
)
@flags.reads_stores
def archive(topic: str, *, archive_directory: str, before: int | None, finder: StoreFinder) -> None:
    """Copy a topic to Parquet files, which Spark reads together with the stores as one topic.

    Each record is archived once, however often this runs. The stores delete nothing.
    """
    before_us = parse_time_us(f"{datetime.now(UTC).date()}") if before is None else before
    timeout_s = finder.timeout_s
    from dafka_core.archive.archive import ArchiveWriter

    with finder.clients() as clients:
        found = [(client, client.heads([topic], timeout_s=timeout_s)) for client in clients]
        heads = merge_heads(info for _, infos in found for info in infos)
        every = partial(store_clients.heads, clients, None, timeout_s)
        store_clients.chosen(heads.values(), topic, (), every)
        writer = ArchiveWriter(archive_directory, topic)
        added: list[ArchivedFile] = []
        failed: dict[str, DafkaError] = {}
        with output.progress(None, "records") as advance:
            # The store with most records first; from the others only what it lacks.
            for client, infos in sorted(found, key=lambda each: -_records(each[1])):
                wanted = _wanted(client, infos, heads, before_us, timeout_s)
                now = writer.archive(wanted, partial(_read, client, timeout_s, advance))
                added += now.files
                _note_failures(failed, writer, wanted, now)
    if not added and not failed:
        output.info("nothing to archive: all records are in the archive, or newer than --before")
    records = sum(file.end - file.start for file in added)
    row = (topic, len(added), records, sum(file.size_bytes for file in added))
    output.table(("topic", "files", "records", "bytes"), [row])
    for error in failed.values():
        output.error(str(error))
    if failed:
        raise click.exceptions.Exit(1)


def _records(infos: Sequence[PartitionInfo]) -> int:
    return sum(info.end - info.earliest for info in infos)


def _wanted(
    client: StoreClient,
    infos: Sequence[PartitionInfo],
    heads: dict[Any, PartitionInfo],
    before_us: int,
    timeout_s: float,
) -> list[Wanted]:
    from dafka_core.archive.archive import Wanted

    times = [(*info.tp, before_us) for info in infos]
    ends = client.offset_for_times(times, timeout_s=timeout_s)
    pairs = (
        (info, info.end if end is None else end) for info, end in zip(infos, ends, strict=True)
    )
    return [
        Wanted(info.tp, info.earliest, end, heads[info.tp].life)
        for info, end in pairs
        if info.earliest < end
    ]


def _read(
    client: StoreClient, timeout_s: float, advance: Callable[[int], None], wanted: Wanted
) -> Iterator[RecordBatch]:
    from dafka_core.archive.archive import GROUP_BYTES, GROUP_RECORDS

    life, after = (None if life == NO_LIFE else life for life in (wanted.life, wanted.after))
    for batch in client.read(
        wanted.tp,
        wanted.start,
        wanted.end,
        life=life,
        after=after,
        times=True,
        max_records=GROUP_RECORDS,
        max_bytes=GROUP_BYTES,
        timeout_s=timeout_s,
    ):
        advance(batch.count)
        yield batch


def _note_failures(
    failed: dict[str, DafkaError], writer: ArchiveWriter, wanted: Sequence[Wanted], added: Added
) -> None:
    """Keep the errors of partitions that no store has supplied completely so far."""
    failed |= {tp.partition: error for tp, error in added.failed.items()}
    whole = {each.tp.partition: each for each in wanted}
    for partition in list(failed):
        each = whole.get(partition)
        if each and not any(writer.manifest.missing(partition, each.start, each.end)):
            del failed[partition]
