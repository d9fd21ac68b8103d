"""The dashboard and the alerts ask for what nodes really tell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dafka_console.server import METRICS
from dafka_core import MetricsEndpoint
from dafka_core.protocol import messages
from scripts import dashboard
from tests.integration.ops.conftest import ask

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RULES = (DEPLOY / "prometheus/dafka_rules.yml").read_text("utf-8")

GIVEN = {"job", "instance"}
"""Labels that Prometheus adds."""

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
