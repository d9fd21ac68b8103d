"""``dafka groups``: Kafka's consumer groups, and how far behind they are."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from dafka_core.cli import output, store_clients
from dafka_core.cli.list_commands import AsJson, Timeout, Uris, shown
from dafka_core.errors import DafkaError
from dafka_core.names import quoted, unescape
from dafka_core.near_names import what_there_is

_BEHIND: Final = ("records_behind", "bytes_behind", "seconds_behind")
_GROUP_COLUMNS: Final = ("group", "state", "members", "partitions", *_BEHIND)
_PARTITION_COLUMNS: Final = (
    *("topic", "number", "partition", "position", "end", *_BEHIND),
    *("member", "client", "host"),
)


def groups(
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="[GROUP]",
            show_default=False,
            parser=unescape,
            help="A group, to list its partitions and who reads them; all groups without it.",
        ),
    ] = None,
    *,
    as_json: AsJson = False,
    timeout_s: Timeout = 10.0,
    uris: Uris = "",
    **options: Any,
) -> None:
    """List the consumer groups of Kafka's clients, and how far behind they are.

    It asks stores, not gateways: what it shows of members is what they were when all of them last
    knew their partitions.
    """
    from dafka_core.kafka.groups.group_lag import group_lags

    with store_clients.opened(timeout_s, uris, options) as asked:
        found = group_lags(asked, timeout_s=timeout_s)
    if group is None:
        if not found:
            output.say("no consumer group has committed, or has members")
        rows = [shown((*each[:3], len(each.partitions), *each[3:6])) for each in found]
        output.table(_GROUP_COLUMNS, rows, as_json=as_json)
        return
    of_group = next((each for each in found if each.group == group), None)
    if of_group is None:
        near = what_there_is(group, {each.group for each in found}, "groups")
        raise DafkaError(f"there is no group {quoted(group)} ({near})")
    rows = []
    for topic, number, lag, member in of_group.partitions:
        behind = lag[2:] if lag else (None,) * 6
        reader = (member.member_id, member.client_id, member.host) if member else (None,) * 3
        rows.append(shown((topic, number, *behind, *reader)))
    output.table(_PARTITION_COLUMNS, rows, as_json=as_json)
