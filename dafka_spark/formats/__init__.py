"""Formats of values: each has a codec, which decodes values into a column and encodes a column."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(module: str, *, extra: str) -> Any:
    """Import a module of a package that only some formats use, and that ``extra`` installs."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        cure = f"pip install 'dafka-spark[{extra}]'"
        raise ImportError(f"needs {package} on the driver and the executors: {cure}") from None
