"""The gateway as an extension of a store, ``dafka store --kafka``, and its commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dafka_core.cli.commands import KAFKA, Command
from dafka_core.cli.flags import add_settings
from dafka_core.config.options import OptionInfo, option
from dafka_core.ops.store_extension import StoreExtension
from dafka_kafka import gateway_metrics
from dafka_kafka.options import KafkaOptions

if TYPE_CHECKING:
    from dafka_core.nodes.store import Store
    from dafka_core.storage import Log
    from dafka_kafka.gateway import Gateway


@dataclass(frozen=True)
class GatewayFlags(KafkaOptions):
    """The options of a command that runs a store; ``kafka`` is the gateway's ``listen``."""

    MAIN = KafkaOptions.MAIN | {"kafka"}

    kafka: str = option(
        "", "let Kafka's clients connect here (needs extra 'kafka')", kind="HOST[:PORT]"
    )

    @classmethod
    def table(cls) -> list[OptionInfo]:
        """Return the options as rows, the switch first."""
        rows = {row.name: row for row in super().table() if row.name != "listen"}
        return [rows.pop("kafka"), *rows.values()]


class GatewayExtension(StoreExtension):
    """A gateway for Kafka's clients."""

    switch = "kafka"
    options = GatewayFlags
    metrics = gateway_metrics.TABLE
    unused = "is the gateway's: say where it listens, with --kafka"

    def start(self, store: Store, options: Mapping[str, Any]) -> Gateway:
        """Start a gateway; raise ConfigError if it cannot listen, or the extra is missing."""
        self.retract(store)  # others must not name it while the next line takes a second
        from dafka_kafka.gateway import Gateway  # noqa: PLC0415 -- an extra

        others = {name: value for name, value in options.items() if name != self.switch}
        return Gateway(store, listen=options[self.switch], **others)

    def retract(self, store: Store) -> None:
        """Tell the other gateways that this store has no gateway, if a former one was killed."""
        from dafka_kafka.gateways import retract_former  # noqa: PLC0415 -- slow to import

        retract_former(store)

    def named_stores(self, log: Log) -> set[str]:
        """Return the stores whose gateways have partitions."""
        from dafka_kafka.registry_table import RegistryLog  # noqa: PLC0415 -- slow to import

        table = RegistryLog(log).read()
        return {each.gateway for topic in table.topics for each in table.partitions(topic)}


add_settings(KafkaOptions)

_USER: Final = ("add", "change", "remove", "show")

COMMANDS: Final = (
    Command("dafka_kafka.commands:kafka", KAFKA),
    Command("dafka_kafka.commands:groups", KAFKA),
    Command(
        "dafka_kafka.commands:kafka_user",
        KAFKA,
        commands=tuple(Command(f"dafka_kafka.commands:{each}") for each in _USER),
    ),
)
"""The commands of this package (``dafka_core.cli.commands``)."""
