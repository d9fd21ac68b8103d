"""Options of how much a micro-batch takes, and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import ClassVar, Final

from dafka_core.errors import ConfigError
from dafka_core.options import Options, option, parse_int
from dafka_spark.option_values import UNLIMITED, UNLIMITED_BYTES, parse_size
from dafka_spark.positions import parse_duration_ms
from dafka_spark.spark_options import camel

DEFAULT_BYTES: Final = 4 << 30
"""What a micro-batch takes unless options say otherwise.  A topic's whole past in one batch takes
hours without a checkpoint, and shuffles that fill disks.  So much takes a laptop most of a minute,
and a hundred cores seconds, beside which the 0.1 to 0.5 s that a batch costs Spark are little."""


@dataclasses.dataclass(frozen=True)
class TriggerOptions(Options):
    """How much a micro-batch takes, and when; streams only."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)

    max_offsets_per_trigger: int | None = option(
        None,
        "streams only, the most records in a micro-batch, shared among the partitions in "
        "proportion to what each has waiting",
        kind="int",
        parse=parse_int,
        minimum=1,
        unit="records",
    )
    max_bytes_per_trigger: int | None = option(
        None,
        "streams only, about the most bytes in a micro-batch, shared in the same way: a number, a "
        f"size as `512m` or `4g`, or `{UNLIMITED}`; {DEFAULT_BYTES} (4g) when neither this nor "
        "maxOffsetsPerTrigger is given. Stores tell the size of records by samples of what is "
        "waiting",
        kind=f"int, size or {UNLIMITED}",
        parse=parse_size,
        minimum=1,
        unit="bytes",
    )
    min_offsets_per_trigger: int | None = option(
        None,
        "streams only, wait with a micro-batch until so many records are there, or maxTriggerDelay "
        "has passed since the last one; not with `availableNow`, which reads what there is",
        kind="int",
        parse=parse_int,
        minimum=1,
        unit="records",
    )
    max_trigger_delay: int = option(
        900_000,
        "the longest wait for minOffsetsPerTrigger while there are records: a time as `500ms`, "
        "`30s`, `15m`, `2h`, or a number of milliseconds",
        kind="time",
        parse=parse_duration_ms,
        unit="ms",
    )

    def check_trigger(self) -> None:
        """Raises ConfigError where no micro-batch could have as many records as it must."""
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            why = f"must not be above maxOffsetsPerTrigger, which is {most}"
            raise ConfigError("minOffsetsPerTrigger", least, why)

    @property
    def trigger_bytes(self) -> int:
        """The most bytes in a micro-batch."""
        if self.max_bytes_per_trigger is not None:
            return self.max_bytes_per_trigger
        return DEFAULT_BYTES if self.max_offsets_per_trigger is None else UNLIMITED_BYTES

    @property
    def is_limited_by_default(self) -> bool:
        """Whether no option says how much a micro-batch takes."""
        return self.max_bytes_per_trigger is None and self.max_offsets_per_trigger is None

    def unused_of_trigger(self, *, batch: bool) -> Iterator[tuple[str, str]]:
        """Which of these options say nothing to a batch, or to a stream as it is, and why."""
        if batch:
            for each in dataclasses.fields(TriggerOptions):
                yield each.name, "a batch has no trigger"
        elif self.min_offsets_per_trigger is None:
            yield "max_trigger_delay", "no batch waits without minOffsetsPerTrigger; give it, too"
