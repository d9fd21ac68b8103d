"""The installed distribution: its version, and the entry points of packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from dafka_core.errors import ConfigError


def plugins(group: str) -> list[Any]:
    """Load what the entry points of a group name, in the order of their names.

    Raises:
        ConfigError: one cannot be loaded.
    """
    loaded = []
    for each in sorted(entry_points(group=group), key=lambda each: each.name):
        try:
            loaded.append(each.load())
        except (ImportError, AttributeError) as error:
            package = f"package {each.dist.name}" if each.dist else "its package"
            why = f"cannot be loaded ({error}): update or remove {package}"
            raise ConfigError(each.name, each.value, why, f"entry point of {group}") from None
    return loaded


def this_version() -> str:
    """The version of Dafka that runs here."""
    try:
        return version("dafka-spark")
    except PackageNotFoundError:  # run from its source, or from a zip as Spark's workers do
        return "of its source"
