"""Packages of extras, and who has not installed them."""

from __future__ import annotations

import json

import pytest

from dafka_spark.formats.extras import needed


def test_a_package_that_is_there_is_given() -> None:
    assert needed("json", extra="x") is json


def test_one_that_is_not_is_named_with_its_extra() -> None:
    why = r"needs not_there on the driver and the executors: pip install 'dafka-spark\[odd\]'"
    with pytest.raises(ImportError, match=why):
        needed("not_there.part", extra="odd")
