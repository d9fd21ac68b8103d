"""The notebook runs as it stands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "notebooks" / "explore_topic.ipynb"

# A cell waits for Spark's first job, on a machine that may be busy.
CELL_TIMEOUT_S = 180


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel inherits: the packages and this Python."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.usefixtures("environment")
def test_the_notebook_runs_and_plots() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    client.execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    text = "".join(out.get("text", "") for out in outputs)
    assert "timestamp" in text
    assert "mean_delay_min" in text
    assert sum("image/png" in out.get("data", {}) for out in outputs) == 1
