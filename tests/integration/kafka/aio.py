"""A runner for aiokafka."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run as ``asyncio.run``, and close connections that aiokafka leaves open."""
    try:
        return asyncio.run(work)
    finally:
        collect()


def collect() -> None:
    """Close connections that aiokafka leaves open.

    It does not await their end. Collecting them here keeps their ResourceWarnings out of later
    tests.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
