"""Options of which records to read: where they say nothing, a warning says so."""

from __future__ import annotations

import logging

import pytest

from dafka_spark.options import SourceOptions


def test_streams_pass_pushed_filters_over(caplog: pytest.LogCaptureFixture) -> None:
    options = SourceOptions.of({"subscribe": "t", "pushFilters": "true"})
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        options.for_batch()
        assert not caplog.records
        options.for_stream()
    assert "pushFilters = True is ignored: Spark pushes filters of batches only" in caplog.text
