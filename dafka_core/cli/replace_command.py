"""``dafka store replace``: a store that goes on in place of one that is lost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import WithResult
from dafka_core.cli.list_commands import Timeout
from dafka_core.cli.store_commands import Stopped, near_address
from dafka_core.errors import DafkaError
from dafka_core.records import PartitionInfo

if TYPE_CHECKING:
    from dafka_core import Reader
    from dafka_core.storage import Log

_ADDRESS: Final = re.compile(r"[0-9A-F]{32}")


def replace(
    directory: Stopped,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", show_default=False)],
    *,
    as_json: WithResult = False,
    timeout_s: Timeout = 10.0,
    **options: Any,
) -> None:
    """Have the store in DIR, which must not run, go on in place of one that is gone for ever.

    It takes that one's address. With --kafka it takes what Kafka's clients write to the partitions
    that the other one hosted. It must have run before until it had all that the others have.
    """
    from dafka_core import Reader
    from dafka_core.nodes import store_identity

    with store_identity.log_of(directory) as log:
        former = store_identity.address_of(log.directory)
        with Reader(**options) as reader:
            reader.hear_stores(timeout_s=timeout_s)
            missing = {each.store for each in reader.missing_stores(timeout_s=timeout_s)}
            _check_gone(reader, missing - {former}, _named_in(log) - {former}, address)
            lacking = _lacking(log, reader, timeout_s)
        if lacking:
            topic, partition = lacking[0].tp
            raise DafkaError(
                f"{directory} lacks records of {len(lacking)} partitions, as of topic {topic!r}, "
                f"partition {partition}: run it ('dafka store --dir {directory}') until it has all"
            )
        store_identity.take_address(log.directory, address)
    said = (
        f"{directory} is store {address} from now on; start it, and have the others forget what it "
        f"was before: 'dafka store forget {former}'"
    )
    output.done(said, as_json=as_json, directory=directory, store=address, before=former)


def _check_gone(reader: Reader, missing: set[str], named: set[str], address: str) -> None:
    """Raises DafkaError where the address may not be taken, or what is lacking cannot be said."""
    there = reader.stores()
    if address in there:
        raise DafkaError(f"store {address} is there: only one that is gone for ever is replaced")
    known = set(filter(_ADDRESS.fullmatch, missing | named.difference(there)))
    if address not in known:
        raise DafkaError(
            f"no store that is away is known as {address}; {near_address(address, known)}"
        )
    for away in sorted(missing - {address}):
        why = f"store {away} is away, and may have what {address} had"
        raise DafkaError(f"{why}: start it, or have the others forget it ('dafka store forget')")
    for silent in sorted(set(there) - reader.endpoints().keys()):
        raise DafkaError(f"store {silent} serves no Flight: what it has cannot be compared")


def _named_in(log: Log) -> set[str]:
    """The stores that this one has met, and those that records of extensions name."""
    from dafka_core.nodes.store_extension import store_extensions

    named = {store for each in store_extensions() for store in each.named_stores(log)}
    return named | {each.store for each in log.met()}


def _lacking(log: Log, reader: Reader, timeout_s: float) -> list[PartitionInfo]:
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.flight.store_location import StoreLocation

    found = []
    for each in reader.endpoints().items():
        with StoreClient(StoreLocation(*each), reader.keys) as client:
            for info in client.heads(None, timeout_s=timeout_s):
                own = log.info(info.tp)
                if info.end and (own is None or (own.life, own.end) < (info.life, info.end)):
                    found.append(info)
    return found
