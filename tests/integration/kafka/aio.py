"""Runs what uses aiokafka."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``; connections that aiokafka has left open go here."""
    try:
        return asyncio.run(work)
    finally:
        collect()


def collect() -> None:
    """Ends connections that aiokafka has left open.

    It does not wait until one is closed.  What is left of it goes here, where it is known whose it
    is, and not in some later test, which would fail by the warning.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
