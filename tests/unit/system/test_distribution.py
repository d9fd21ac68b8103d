"""The version is that of the installed package."""

from __future__ import annotations

from importlib import metadata

import pytest

from dafka_core.system.distribution import this_version


def test_the_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_version() == metadata.version("dafka-spark")

    def find_none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", find_none)
    assert this_version() == "of its source"
