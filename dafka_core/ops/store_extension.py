"""Extensions: programs that run beside a store, in its process (docs/architecture.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dafka_core.config.options import Options
from dafka_core.errors import ConfigError
from dafka_core.nodes.node import Node
from dafka_core.system.distribution import plugins

if TYPE_CHECKING:
    from dafka_core.nodes.store import Store
    from dafka_core.ops.findings import Finding
    from dafka_core.ops.metric_declarations import Metric
    from dafka_core.storage import Log

GROUP: Final = "dafka.store_extensions"
"""The group of entry points; each names a class derived from ``StoreExtension``."""


class ExtensionNode(Node):
    """A running extension, or a console; ``close`` stops it, before its store is closed.

    A constructor sets ``is_open`` when the node runs, and ``close`` resets it.
    """

    metrics: ClassVar[Sequence[Metric]] = ()  # its metrics, which are read from the node itself

    @property
    def kind(self) -> str:
        """The name of the class, in lower case: a label of its metrics."""
        kinds = type(self).__mro__
        return kinds[kinds.index(ExtensionNode) - 1].__name__.lower()

    @property
    @abstractmethod
    def name(self) -> str:
        """The node's name in metrics, such as the address of its service."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts that commands print with READY, as JSON."""
        return {}

    @property
    def notice(self) -> str:
        """A sentence that commands print at the start; empty for none."""
        return ""

    def findings(self) -> Iterable[Finding]:
        """Return the state for ``/healthz`` and ``/readyz``, without waiting."""
        return ()


class StoreExtension(ABC):
    """The description of an extension: its options, and how it starts.

    It is loaded for each command of ``dafka``: its module imports little.
    """

    switch: ClassVar[str]  # the option that switches the extension on: it is off without a value
    options: ClassVar[type[Options]]
    """Its options with ``switch``: flags of commands that run stores, and settings."""
    metrics: ClassVar[Sequence[Metric]] = ()  # the metrics of its nodes
    unused: ClassVar[str] = ""  # why an option is refused while the extension is off

    def check(self, options: Mapping[str, Any]) -> None:
        """Check options before the store is opened.

        Raises:
            ConfigError: an option is given, and the extension is off.
        """
        if self.switch not in options:
            flag = self.switch.replace("_", "-")
            for name, value in options.items():
                raise ConfigError(name, value, self.unused or f"has no effect without --{flag}")

    @abstractmethod
    def start(self, store: Store, options: Mapping[str, Any]) -> ExtensionNode:
        """Start the extension at a store, with the options that the user gave, as text."""

    def retract(self, store: Store) -> None:  # noqa: B027 -- most announce nothing
        """Withdraw what a previous run announced at this store; the extension is off now."""

    def named_stores(self, log: Log) -> set[str]:
        """Return the addresses of stores that the extension's own records name."""
        return set()


@cache
def store_extensions() -> tuple[StoreExtension, ...]:
    """Load the extensions of all installed packages."""
    return tuple(kind() for kind in plugins(GROUP))
