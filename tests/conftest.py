"""The project's own fixtures, for its own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dafka_core.testing import pytest_plugin

SPARK: Final = ("jobs", "spark")
"""Directories whose tests share one process and its JVM; all others run beside it."""


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin where the package is not installed, and no entry point names it."""
    if not config.pluginmanager.is_registered(pytest_plugin):
        config.pluginmanager.register(pytest_plugin, "dafka")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two halves, for two processes: a JVM in each would take twice the memory and time."""
    here = Path(__file__).parent
    for item in items:
        half = "spark" if item.path.relative_to(here).parts[0] in SPARK else "others"
        item.add_marker(pytest.mark.xdist_group(half))
