"""The flag ``--metrics`` of commands whose nodes run for long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dafka_core.cli import output
from dafka_core.cli.flags import of_table
from dafka_core.errors import ConfigError
from dafka_core.metrics.options import MetricsOptions

if TYPE_CHECKING:
    from dafka_core.metrics.endpoint import MetricsEndpoint
    from dafka_core.nodes.node import Node


class Watch:
    """What tells of a command's nodes, if anything does."""

    def __init__(self, endpoint: MetricsEndpoint | None = None) -> None:
        self._endpoint = endpoint

    @property
    def facts(self) -> dict[str, str]:
        """What READY says of it."""
        return {} if self._endpoint is None else {"metrics": self._endpoint.url}

    def add(self, *nodes: Node) -> None:
        """Has it tell of nodes, which are there now."""
        if self._endpoint is not None:
            self._endpoint.add(*nodes)


@contextmanager
def watching(what: str, options: Mapping[str, Any]) -> Iterator[Watch]:
    """Serves numbers of nodes where ``--metrics`` says so, also while they are being made.

    Raises:
        ConfigError: it cannot; or another option of it is given, and it is not.
    """
    given = of_table(MetricsOptions, options)
    config = MetricsOptions.build(given)
    if config.metrics is None:
        for name, value in given.items():
            why = "is of what is served with --metrics: say where, as --metrics 9108"
            raise ConfigError(name, value, why)
        yield Watch()
        return
    from dafka_core.metrics.endpoint import MetricsEndpoint

    with MetricsEndpoint(
        config.metrics,
        topics=config.metrics_topics,
        token_file=config.metrics_token_file,
        insecure=bool(options.get("insecure")),
    ) as endpoint:
        endpoint.expect(what)
        output.say(f"metrics at {endpoint.url}/metrics")
        yield Watch(endpoint)


def unwatched(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same options; says that a command serves no numbers where ``--metrics`` asks for them."""
    if options.get("metrics") is not None:
        output.say("no metrics are served: this reads in bulk, and ends")
    return options
