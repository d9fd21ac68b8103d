"""The project's own fixtures, for its own tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from dafka_core.testing import pytest_plugin

HERE = Path(__file__).parent

# How long an example may take says something of the machine, and nothing of the code.
settings.register_profile("dafka", deadline=None)
settings.load_profile("dafka")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin where the package is not installed, and no entry point names it."""
    if not config.pluginmanager.is_registered(pytest_plugin):
        config.pluginmanager.register(pytest_plugin, "dafka")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests share one process, whose JVM they need, and begin first.

    All other tests fill up what is left of both processes.
    """

    def needs_spark(item: pytest.Item) -> bool:
        return item.path.is_relative_to(HERE / "spark")

    for item in items:
        if needs_spark(item):
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: not needs_spark(item))
