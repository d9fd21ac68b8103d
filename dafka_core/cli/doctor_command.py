"""``dafka doctor``: what is wrong with a cluster, as this machine sees it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.list_commands import AsJson, Timeout, Uris
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.name_limits import check_topic
from dafka_core.names import unescape
from dafka_core.options import check_argument

_COLUMNS: Final = ("severity", "about", "finding", "remedy")

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        parser=unescape,
        help="A topic to look for; may be given several times.",
    ),
]


def doctor(
    *,
    topic: Topics = None,
    as_json: AsJson = False,
    timeout_s: Timeout = 10.0,
    uris: Uris = "",
    **options: Any,
) -> None:
    """Find out what is wrong: towers, stores, topics, clocks, versions, locks, who reaches whom.

    Exits with 1 if there is a problem; warnings are none.
    """
    from dafka_core.diagnosis.checks import check_all
    from dafka_core.diagnosis.findings import problems
    from dafka_core.diagnosis.gathering import gathered
    from dafka_core.diagnosis.security_checks import check_security
    from dafka_core.flight.store_location import parse_locations
    from dafka_core.node_options import ReaderOptions

    for each in topic or ():
        check_argument("topic", each, check_topic)
    try:
        named = parse_locations(uris) if uris else ()
    except ValueError as error:
        raise ConfigError("stores", uris, str(error)) from None
    facts = gathered(options, topic or (), named, timeout_s=timeout_s)
    found = [*check_all(facts), *check_security(ReaderOptions.build(options), facts)]
    rows = [(each.severity.value, *each[1:4]) for each in found]
    output.table(_COLUMNS, rows, as_json=as_json, wrapped=("finding", "remedy"))
    if wrong := problems(found):
        raise DafkaError("1 problem" if len(wrong) == 1 else f"{len(wrong)} problems")
