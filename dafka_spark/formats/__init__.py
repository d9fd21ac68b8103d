"""Formats of values: each has a codec, which decodes values into a column and encodes a column."""

from __future__ import annotations

import importlib
from typing import Any

from pyspark.sql.types import StructType


def check_names(kind: StructType) -> None:
    """Raise ValueError for a duplicate field, as of ``struct(*)`` after a join."""
    for name in kind.names:
        if kind.names.count(name) > 1:
            raise ValueError(f"has the duplicate field {name!r}; give each a name of its own")


def import_extra(module: str, *, extra: str) -> Any:
    """Import a module of a package that only some formats use, and that ``extra`` installs."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        cure = f"pip install 'dafka-spark[{extra}]'"
        raise ImportError(f"needs {package} on the driver and the executors: {cure}") from None
