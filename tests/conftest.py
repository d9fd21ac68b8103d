"""The project's own fixtures, for its own tests."""

from __future__ import annotations

import pytest

from dafka_core import pytest_plugin


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin where the package is not installed, and no entry point names it."""
    if not config.pluginmanager.is_registered(pytest_plugin):
        config.pluginmanager.register(pytest_plugin, "dafka")
