"""Declared, served and documented metrics are equal."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dafka_core import MetricsEndpoint
from dafka_core.ops import metric_declarations
from dafka_core.ops.metric_declarations import EVERY, MESH_NODES
from dafka_kafka import gateway_metrics
from scripts import options as script
from tests.integration.ops.conftest import ask

TABLE = (*metric_declarations.TABLE, *gateway_metrics.TABLE)
KINDS = {*MESH_NODES, "tower", "gateway"}
PAGE = Path(__file__).resolve().parents[3] / "docs/metrics.md"


def test_a_scrape_has_every_metric_of_the_page_and_no_other(endpoint: MetricsEndpoint) -> None:
    documented = re.findall(r"^\| `(dafka_\w+)` \| (\w+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    served = re.findall(r"^# TYPE (dafka_\w+) (\w+)$", ask(f"{endpoint.url}/metrics").text, re.M)
    assert served == documented
    assert script.metrics_table() in PAGE.read_text("utf-8")


def test_each_sample_has_the_labels_that_are_declared(endpoint: MetricsEndpoint) -> None:
    declared = {row.name.removesuffix("_total"): row for row in TABLE}
    kinds = set()
    for family in text_string_to_metric_families(ask(f"{endpoint.url}/metrics").text):
        if not family.name.startswith("dafka_"):
            continue
        row = declared[family.name]
        assert family.documentation.startswith(row.meaning)
        for sample in family.samples:
            labels = {*sample.labels} - {"le"}
            assert labels == {*row.all_labels}, sample
            assert row.of is EVERY or sample.labels["kind"] in row.of
            kinds.add(sample.labels["kind"])
    assert kinds == KINDS


def test_names_have_their_units_as_prometheus_wants_them() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)
    for row in TABLE:
        assert row.name.endswith("_total") == (row.kind == "counter"), row
        if row.unit in ("bytes", "seconds"):
            assert row.name.removesuffix("_total").endswith(f"_{row.unit}"), row
        assert row.meaning
        assert set(row.of) <= {*KINDS, *EVERY}
