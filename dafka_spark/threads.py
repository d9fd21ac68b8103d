"""Threads that write to Dafka, such as those of a pool in ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_session(session: SparkSession, function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return the function so that it may write in any thread: ``pool.map(in_session(...), ...)``.

    Spark looks up the format of a write in the session that is active in the thread, and PySpark
    activates none in a new thread: a Python source is ``DATA_SOURCE_NOT_FOUND`` there.  With Spark
    Connect the function is returned unchanged.
    """
    if not hasattr(session, "_jsparkSession"):
        return function

    @wraps(function)
    def active(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        jvm = session._jvm  # noqa: SLF001
        assert jvm is not None
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
        try:
            return function(*args, **kwargs)
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    return active
