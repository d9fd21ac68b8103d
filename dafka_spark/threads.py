"""Writing from threads of one's own, as some do in ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_session(session: SparkSession, function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function, such that it may write wherever it runs: ``pool.map(in_session(...), ...)``.

    Spark looks for the format of a write in the session that is active in the thread, and PySpark
    makes none active in a new one: a source in Python is ``DATA_SOURCE_NOT_FOUND`` there.  Sessions
    of Spark Connect have no JVM to say it to: with one, this is the function itself.
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
