"""Packages that one format needs and the others do without."""

from __future__ import annotations

import importlib
from typing import Any


def needed(module: str, *, extra: str) -> Any:
    """A module of a package that comes with ``extra``.

    Raises:
        ImportError: it is not installed here.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        cure = f"pip install 'dafka-spark[{extra}]'"
        why = f"needs {package} on the driver and the executors: {cure}"
        raise ImportError(why) from None
