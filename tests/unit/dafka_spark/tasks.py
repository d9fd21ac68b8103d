"""Tasks without Spark, for tests of writers and workers."""

from collections.abc import Mapping
from types import ModuleType
from typing import Self

import pytest

from dafka_spark.sink import writer


class Task:
    """The part of a TaskContext that writers and workers read."""

    def __init__(self, number: int = 0, properties: Mapping[str, str] | None = None) -> None:
        self._number = number
        self._properties = properties or {}

    def begin(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType = writer) -> None:
        """Make this the running task, as the module sees it."""
        monkeypatch.setattr(module, "TaskContext", self)

    def get(self) -> Self:
        return self

    def partitionId(self) -> int:  # noqa: N802 -- Spark's name
        return self._number

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 -- Spark's name
        return self._properties.get(name)
