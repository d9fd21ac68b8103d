"""What to do about lost records: the only place that decides between failing and warning."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dafka_core.errors import DataLossError

_log = logging.getLogger("dafka_spark")


@dataclass(frozen=True, slots=True)
class DataLossPolicy:
    """Option ``failOnDataLoss``."""

    fail: bool

    def meet(self, loss: DataLossError) -> None:
        """Raises ``loss`` with what can be done about it, or warns of it."""
        if not self.fail:
            _log.warning("%s; going on after it, as failOnDataLoss is false", loss)
            return
        raise DataLossError(
            loss.topic,
            loss.partition,
            loss.wanted,
            loss.available,
            f"{loss.why}. Start a store that still has the records, or set option "
            "failOnDataLoss to false to go on without them",
        ) from loss
