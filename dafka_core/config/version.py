"""Which version of Dafka runs here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def this_version() -> str:
    """The version of Dafka that runs here."""
    try:
        return version("dafka-spark")
    except PackageNotFoundError:  # run from its source, or from a zip as Spark's workers do
        return "of its source"
