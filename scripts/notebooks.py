"""Runs the notebooks and keeps what they show: ``python scripts/notebooks.py [NAME]...``.

All run in one kernel, one after the other, each with nothing of the one before but Spark's session:
a JVM for each would take most of the time.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / "notebooks"
QUIET = ROOT / "dafka_spark" / "log4j2.properties"

# A cell waits for Spark's first job, on a machine that may be busy.
CELL_TIMEOUT_S = 180

# Others in each run: partitions, digests, queries.
_RANDOM = re.compile(
    r"\b[0-9A-F]{32}\b|\b[0-9a-f]{12}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
)

_AFRESH = "%reset -f"

# Control sequences of `dafka`, and Java's messages when a Spark session starts.
_ASIDE = re.compile(r"\x1b\[[0-9;]*m|^WARNING: Using incubator modules: .*\n", re.MULTILINE)


@contextmanager
def kernel() -> Iterator[KernelManager]:
    """A Python for notebooks, with this directory's packages; Spark prints errors only."""
    quiet = f"-Dlog4j2.configurationFile={QUIET.as_uri()}"
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {quiet}".strip(),
    }
    manager = KernelManager(transport="ipc")  # others on this machine cannot reach it
    manager.start_kernel(env=environment)
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)


def read(name: str) -> Any:
    """A notebook as it is kept."""
    return nbformat.read(DIRECTORY / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]


def run(notebook: Any, manager: KernelManager, directory: Path) -> None:
    """Run a notebook's cells, and put their outputs in it.

    Raises:
        CellExecutionError: a cell failed.
    """
    afresh = nbformat.v4.new_code_cell(_AFRESH)  # type: ignore[no-untyped-call]
    notebook.cells.insert(0, afresh)
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(directory)}},
    )
    try:
        client.execute(reset_kc=False)
    finally:
        del notebook.cells[0]
        if client.kc is not None:
            client.kc.stop_channels()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if output.output_type == "stream":
                output.text = _ASIDE.sub("", output.text)
        cell.outputs = [each for each in cell.outputs if each.get("text", "-").strip()]


def texts(cell: Any) -> list[str]:
    """Return a cell's outputs, without parts that differ in each run."""
    outputs = cell.get("outputs", [])
    return [stable(each.get("text") or each["data"].get("text/plain", "")) for each in outputs]


def stable(text: str) -> str:
    """A text without what is another in each run, and without colours."""
    return _RANDOM.sub("", _ASIDE.sub("", text)).strip()


def pictures(cell: Any) -> list[str]:
    """The pictures that a cell shows: PNG, in base64."""
    outputs = cell.get("outputs", [])
    return [each.data["image/png"] for each in outputs if "image/png" in each.get("data", {})]


def names() -> list[str]:
    """Return all notebooks."""
    return sorted(path.stem for path in DIRECTORY.glob("*.ipynb"))


def main() -> None:
    """Run the named notebooks, or all, and write them with their outputs."""
    with kernel() as manager:
        for name in sys.argv[1:] or names():
            notebook = read(name)
            run(notebook, manager, ROOT)
            notebook.metadata = {
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            }
            nbformat.write(notebook, DIRECTORY / f"{name}.ipynb")  # type: ignore[no-untyped-call]
            print(f"{name}: {sum(len(pictures(cell)) for cell in notebook.cells)} pictures")


if __name__ == "__main__":
    main()
