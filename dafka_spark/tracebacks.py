"""Errors without a traceback: Spark prints the traceback above the sentence that helps the user."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def hide_frames(method: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a method that Spark calls: errors of this package reach Spark without our frames.

    Other errors are defects, and keep their frames.
    """

    @wraps(method)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            from dafka_core.errors import DafkaError  # noqa: PLC0415 -- as in datasource.py

            if isinstance(error, DafkaError):
                error.__traceback__, error.__suppress_context__ = None, True
            raise  # which, unlike "raise error", adds no frame

    return call
