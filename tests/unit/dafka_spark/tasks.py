"""Tasks without Spark, for tests of writers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import pytest

from dafka_spark.sink import writer


class Task:
    """The part of a TaskContext that writers read."""

    def __init__(self, number: int = 0, properties: Mapping[str, str] | None = None) -> None:
        self._number = number
        self._properties = properties or {}

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make this the running task."""
        monkeypatch.setattr(writer, "TaskContext", self)

    def get(self) -> Self:
        return self

    def partitionId(self) -> int:  # noqa: N802 -- Spark's name
        return self._number

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 -- Spark's name
        return self._properties.get(name)
