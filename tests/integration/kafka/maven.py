"""Jars from Maven, where it reaches a repository."""

from pathlib import Path

import pytest

from benchmarks import kafka_broker


def fetch(*poms: Path) -> None:
    """Fetch the broker's jars and those of the POMs; skip the tests if that is impossible."""
    try:
        for pom in (kafka_broker.POM, *poms):
            kafka_broker.jars(pom)
    except RuntimeError as error:
        pytest.skip(str(error))
