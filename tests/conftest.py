"""The project's own fixtures, for its own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from dafka_core.testing import pytest_plugin

HERE = Path(__file__).parent

# How long an example may take says something of the machine, and nothing of the code.
settings.register_profile("dafka", deadline=None)
settings.load_profile("dafka")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin where the package is not installed, and no entry point names it."""
    if not config.pluginmanager.is_registered(pytest_plugin):
        config.pluginmanager.register(pytest_plugin, "dafka")


def needs_spark(path: Path) -> bool:
    return path.is_relative_to(HERE / "spark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests begin first: they take longest."""
    items.sort(key=lambda item: not needs_spark(item.path))


class SparkInOneWorker(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Spark's tests share one worker, whose JVM they need; all others fill up both.

    Not by xdist's marks of groups: with pytest 9.2 these have no effect, and say nothing.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if needs_spark(HERE.parent / nodeid.partition("::")[0]) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkInOneWorker:
    """Has xdist use this scheduler, whatever ``--dist`` says."""
    return SparkInOneWorker(config, log)
