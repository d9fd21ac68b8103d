"""Declared, served and documented metrics are equal."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dafka_console.server import METRICS
from dafka_core import MetricsEndpoint
from dafka_core.ops.node_metrics import EVERY, MESH, TABLE
from dafka_kafka import gateway_metrics
from scripts import options as script
from tests.integration.ops.conftest import ask

KINDS = {*MESH, "tower", "gateway"}
ROWS = {
    row.name: (row, of)
    for of, rows in {**TABLE, ("gateway",): gateway_metrics.TABLE}.items()
    for row in rows
}
PAGE = Path(__file__).resolve().parents[3] / "docs/metrics.md"


def test_a_scrape_has_every_metric_of_the_page_and_no_other(endpoint: MetricsEndpoint) -> None:
    rows = re.findall(r"^\| (`dafka_.*?) \| (histogram)?", PAGE.read_text("utf-8"), re.MULTILINE)
    documented = [
        (name, kind or ("counter" if name.endswith("_total") else "gauge"))
        for names, kind in rows
        for name in re.findall(r"`(\w+)`", names)
    ]
    served = re.findall(r"^# TYPE (dafka_\w+) (\w+)$", ask(f"{endpoint.url}/metrics").text, re.M)
    assert served == [each for each in documented if each[0] not in {row.name for row in METRICS}]
    assert script.metrics_table() in PAGE.read_text("utf-8")


def test_each_sample_has_the_labels_that_are_declared(endpoint: MetricsEndpoint) -> None:
    declared = {name.removesuffix("_total"): row for name, row in ROWS.items()}
    kinds = set()
    for family in text_string_to_metric_families(ask(f"{endpoint.url}/metrics").text):
        if not family.name.startswith("dafka_"):
            continue
        row, of = declared[family.name]
        assert family.documentation == row.meaning
        for sample in family.samples:
            labels = {*sample.labels} - {"le"}
            assert labels == {*row.all_labels}, sample
            assert of is EVERY or sample.labels["kind"] in of
            kinds.add(sample.labels["kind"])
    assert kinds == KINDS


def test_counters_alone_end_in_total_as_prometheus_wants() -> None:
    assert len(ROWS) == sum(map(len, TABLE.values())) + len(gateway_metrics.TABLE)
    for name, (row, of) in ROWS.items():
        assert name.endswith("_total") == (row.kind == "counter"), row
        assert row.meaning
        assert set(of) <= {*KINDS, *EVERY}
