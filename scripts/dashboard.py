"""Make the dashboard for Grafana, deploy/grafana/dafka.json: ``python -m scripts.dashboard``.

``--check`` only compares, and fails if the file is out of date. The panels are in
dashboard_panels.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from scripts.dashboard_panels import CHOSEN, ROWS, Line, Panel
from scripts.generated import write

FILE: Final = Path(__file__).resolve().parent.parent / "deploy/grafana/dafka.json"

COLUMNS: Final = 24
HEIGHT: Final = 8


def expressions() -> list[Line]:
    """All of them, as Grafana has them."""
    return [
        Line(line.expression.replace("@", CHOSEN), line.legend)
        for panels in ROWS.values()
        for panel in panels
        for line in panel.lines
    ]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, found in ROWS.items():
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "gridPos": place})
        numbers = found[0].is_number
        width, height = (COLUMNS // len(found), 4) if numbers else (COLUMNS // 3, HEIGHT)
        top += 1
        for index, panel in enumerate(found):
            line, column = divmod(index * width, COLUMNS)
            place = {"x": column, "y": top + line * height, "w": width, "h": height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_drawn(panel)})
        top += height * -(-len(found) * width // COLUMNS)
    return {
        "uid": "dafka",
        "title": "Dafka",
        "tags": ["dafka"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _choices()},
        "panels": panels,
    }


def _drawn(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "$source"}
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": source,
            "expr": line.expression.replace("@", CHOSEN),
            "legendFormat": line.legend,
        }
        for index, line in enumerate(panel.lines)
    ]
    return {
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "description": panel.why,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def _choices() -> list[dict[str, Any]]:
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    choices = [
        {
            "name": name,
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "$source"},
            "query": query,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        for name, query in (
            ("job", "label_values(dafka_node_info, job)"),
            ("node", 'label_values(dafka_node_info{job=~"$job"}, node)'),
        )
    ]
    return [source, *choices]


def main() -> None:
    """Write the file, or report that it is out of date."""
    write(FILE, json.dumps(dashboard(), indent=1) + "\n")


if __name__ == "__main__":
    main()
