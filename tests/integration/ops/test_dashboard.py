"""Declared, served and documented metrics are equal; the dashboard and the alerts use these."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dafka_console.server import METRICS
from dafka_core import MetricsEndpoint
from dafka_core.ops.node_metrics import EVERY, MESH, TABLE
from dafka_core.protocol import messages
from dafka_kafka import gateway_metrics
from scripts import dashboard
from scripts import options as script
from tests.integration.ops.conftest import ask

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RULES = (DEPLOY / "prometheus/dafka_rules.yml").read_text("utf-8")

GIVEN = {"job", "instance"}  # labels that Prometheus adds

VALUES = {
    "kind": {"store", "producer", "consumer", "tower", "gateway"},
    "how": {"live", "direct"},
    "message": {name for name in vars(messages) if name[0].isupper()},
}
"""Return the values that labels are compared with in an expression."""

ALERTS = re.findall(r"^        expr: (.+)$", RULES, re.MULTILINE)


@pytest.fixture(scope="module")
def labels(endpoint: MetricsEndpoint) -> dict[str, set[str]]:
    """The labels of each sample of a real scrape, by its name."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(ask(f"{endpoint.url}/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found | {row.name: {*row.all_labels} for row in METRICS}  # of the console


@pytest.mark.parametrize(
    ("expression", "legend"), [*dashboard.expressions(), *((each, "") for each in ALERTS)]
)
def test_what_an_expression_asks_for_is_told(
    labels: dict[str, set[str]], expression: str, legend: str
) -> None:
    names = set(re.findall(r"\b(?:dafka|process)_\w+", expression))
    if "up{" not in expression:
        assert names
    assert names <= {*labels}
    known = GIVEN.union(*(labels[name] for name in names))
    used: set[str] = set()
    for matchers in re.findall(r"\{([^}]*)\}", expression):
        for name, value in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
            used.add(name)
            if not value.startswith("$") and name in VALUES:
                assert set(value.split("|")) <= VALUES[name], expression
    for by in re.findall(r"by \(([^)]*)\)", expression):
        used |= set(re.split(r",\s*", by))
    used |= set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))
    assert used <= known, expression


def test_a_legend_names_only_what_is_left_after_summing_up() -> None:
    for expression, legend in dashboard.expressions():
        kept = re.match(r"(?:topk\(10, )?(?:sum|max|min) by \(([^)]*)\)", expression)
        if kept is not None:
            assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= {*re.split(r",\s*", kept[1])}


def test_the_file_is_what_the_panels_make_and_none_lies_on_another() -> None:
    text = (DEPLOY / "grafana/dafka.json").read_text("utf-8")
    made = dashboard.dashboard()
    assert text == json.dumps(made, indent=1) + "\n"
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(column for column, _ in cells) < dashboard.COLUMNS
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["targets"]
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


def test_each_alert_says_why_somebody_should_care() -> None:
    parts = RULES.split("- alert: ")[1:]
    assert len(parts) == len(ALERTS)
    for each in parts:
        assert re.search(r"severity: (page|ticket)", each), each
        assert len(re.findall(r"^          (summary|why): \".+\"$", each, re.MULTILINE)) == 2, each


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
