"""The installed distribution: its version, its extras, and the entry points of packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from dafka_core.errors import ConfigError


def plugins(group: str) -> list[Any]:
    """Load what the entry points of a group name, in the order of their names.

    Raises:
        ConfigError: one cannot be loaded.
    """
    loaded = []
    for name, value, package in sorted(_entry_points(group)):
        module, _, attribute = value.partition(":")
        try:
            loaded.append(getattr(import_module(module), attribute))
        except (ImportError, AttributeError) as error:
            why = f"cannot be loaded ({error}): update or remove package {package}"
            raise ConfigError(name, value, why, f"entry point of {group}") from None
    return loaded


def _entry_points(group: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and package of each entry point.

    ``importlib.metadata`` takes 30 ms for it, a fifth of what ``dafka --help`` may.
    """
    seen = set[str]()
    for directory in dict.fromkeys(sys.path):
        for file in Path(directory).glob("*.dist-info/entry_points.txt"):
            package = file.parent.name.partition("-")[0].replace("_", "-")
            _, _, section = file.read_text("utf-8").partition(f"[{group}]\n")
            if not section or package in seen:
                continue
            seen.add(package)
            for line in section.partition("\n[")[0].splitlines():
                name, equals, value = line.partition("=")
                if equals:
                    yield name.strip(), value.strip(), package


def this_version() -> str:
    """The version of Dafka that runs here."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 -- slow to import

    try:
        return version("dafka-spark")
    except PackageNotFoundError:  # run from its source, or from a zip as Spark's workers do
        return "of its source"


MAX_DECIMAL_BYTES: Final = 1 << 10
"""Larger decimals of Avro stay bytes: a conversion takes time by the square of the size, for 1 MB
minutes in which no other thread runs."""


@cache
def import_fastavro() -> Any:
    """Import fastavro, an extra; its readers convert no large decimals from now on."""
    import fastavro  # noqa: PLC0415

    readers = fastavro.read.LOGICAL_READERS
    for name in ("bytes-decimal", "fixed-decimal"):
        readers[name] = partial(_decimal, readers[name])
    return fastavro


def _decimal(read: Callable[..., Any], data: bytes, *schemas: Any) -> Any:
    return read(data, *schemas) if len(data) <= MAX_DECIMAL_BYTES else data
