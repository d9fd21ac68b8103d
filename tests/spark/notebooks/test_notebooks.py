"""The notebooks run, and their outputs are those stored in them.

They run in the Python of the tests, with its Spark and forked nodes: a kernel, a JVM and three
interpreters for each are far slower.  ``scripts/notebooks.py``, which writes the stored
outputs, runs them in a kernel.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import pytest
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib_inline.backend_inline import configure_inline_support
from pyspark.sql import SparkSession
from traitlets import Type
from traitlets.config import Config

import dafka_core
from scripts import notebooks
from tests.forked import ForkedCluster

INLINE = "module://matplotlib_inline.backend_inline"
PATHS = re.compile(r"/(home|root|tmp|Users|work|var)/")
MAX_BYTES = 250_000
QUICK = ("explore_topic",)
"""The notebook that ``make test`` runs."""


class _Shown(DisplayHook):
    """Publishes the value of a cell's last line like other outputs."""

    def __call__(self, result: object = None) -> None:
        if result is not None and self.shell is not None:
            shown, details = self.compute_format_data(result)  # type: ignore[no-untyped-call]
            self.shell.display_pub.publish(shown, details)


class _Shell(InteractiveShell):
    displayhook_class = Type(_Shown)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteractiveShell]:
    """The shell that kernels run cells in."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patched.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patched.setenv("JPY_PARENT_PID", str(os.getpid()))  # as kernels have it
        patched.setattr(dafka_core, "EmbeddedCluster", ForkedCluster)
        backend = mpl.get_backend()
        config = Config({"HistoryManager": {"enabled": False}})
        running = _Shell.instance(config=config, user_module=ModuleType("cells"))
        mpl.use(INLINE)
        configure_inline_support(running, INLINE)  # type: ignore[no-untyped-call]
        yield running
        running.reset()  # type: ignore[no-untyped-call]
        _Shell.clear_instance()
        mpl.use(backend)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.nightly])
        for name in notebooks.names()
    ],
)
def test_a_notebook_gives_its_stored_outputs(
    name: str, shell: InteractiveShell, spark: SparkSession
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    shell.reset()  # type: ignore[no-untyped-call]
    notebook = notebooks.read(name)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            with capture_output() as captured:
                shell.run_cell(cell.source).raise_error()  # type: ignore[no-untyped-call]
            streams = [captured.stdout] if captured.stdout else []
            given = [*streams, *(each.data["text/plain"] for each in captured.outputs)]
            assert [notebooks.stable(text) for text in given] == notebooks.texts(cell)
            pictures = ["image/png" in each.data for each in captured.outputs]
            assert sum(pictures) == len(notebooks.pictures(cell))
    spark.conf.set("spark.sql.session.timeZone", str(zone))


@pytest.mark.parametrize("name", notebooks.names())
def test_stored_outputs_have_no_paths_and_no_errors(name: str) -> None:
    path = notebooks.DIRECTORY / f"{name}.ipynb"
    assert path.stat().st_size < MAX_BYTES
    assert not PATHS.search(path.read_text(encoding="utf-8"))
    cells = notebooks.read(name).cells
    outputs = [each for cell in cells for each in cell.get("outputs", [])]
    bad = [each for each in outputs if each.get("name") == "stderr" or each.output_type == "error"]
    assert bad == []
    assert any(notebooks.pictures(cell) for cell in cells)
