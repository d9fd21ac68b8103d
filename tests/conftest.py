"""The project's own fixtures, for its own tests."""

import faulthandler
import functools
import gc
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pytest
from hypothesis import Phase, settings
from xdist.scheduler import LoadScopeScheduling

from dafka_core.testing import pytest_plugin

HERE = Path(__file__).parent
SPARK = HERE / "spark"
NOTEBOOKS = SPARK / "notebooks"
SEEDS = HERE / "simulation" / "test_simulation.py"
TABLES = HERE / "chaos" / "test_tables.py"

# The duration of an example depends on the machine, not on the code.
settings.register_profile("dafka", deadline=None)
# Known defects are found by the same examples each time, and these need not be small.
settings.register_profile(
    "mutants", deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("dafka")


@pytest.hookimpl(trylast=True)  # after pytest's own use of faulthandler
def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin if no entry point names it, and prepare a worker for a crash."""
    if not config.pluginmanager.is_registered(pytest_plugin):
        config.pluginmanager.register(pytest_plugin, "dafka")
    if traceback := getattr(config, "workerinput", {}).get("traceback"):
        leave_traceback(os.open(traceback, os.O_WRONLY | os.O_CREAT))


def leave_traceback(file: int) -> None:
    """Write a traceback to a descriptor when this process crashes, or ends by ``os._exit``."""
    worker, leave = os.getpid(), os._exit

    def leave_with_traceback(status: int) -> NoReturn:
        if os.getpid() == worker:
            faulthandler.dump_traceback(file)
        leave(status)

    faulthandler.enable(file)
    os._exit = leave_with_traceback


@functools.cache
def _tracebacks() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="dafka-tracebacks-")


def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist its file, before it starts."""
    node.workerinput["traceback"] = f"{_tracebacks().name}/{node.workerinput['workerid']}"


def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    """Report where a worker crashed: its standard error is far up in the output, or captured."""
    worker = report.node  # set by xdist
    lines = Path(worker.workerinput["traceback"]).read_text().splitlines()
    own = [line for line in lines if "site-packages" not in line]
    report.longrepr = "\n".join([f"{report.longrepr}", *(own or ["without a traceback: killed"])])


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the Spark session of tests that this process ran before."""
    monkeypatch.delitem(sys.modules, "pyspark.core.context", raising=False)


def pytest_collection() -> None:
    """Look for no garbage among what is collected: it lives until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def unit_of(nodeid: str) -> str:
    """Return the name of the group of tests that one worker runs.

    A folder of Spark's tests shares a session, the notebooks with the tests beside them, and a file
    shares the fixtures of its module. The tables of faults are slow and share nothing.
    """
    file = HERE.parent / nodeid.partition("::")[0]
    if file.is_relative_to(SPARK):
        return str(SPARK if file.parent == NOTEBOOKS else file.parent)
    return nodeid if file == TABLES else str(file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest ones begin first."""

    def order(item: pytest.Item) -> int:
        if item.path.parent == SPARK:
            return 0
        return 1 if item.path in (SEEDS, TABLES) or item.path.is_relative_to(SPARK) else 2

    items.sort(key=order)


class LongUnitsFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out ``unit_of`` tests, in their order.

    Not by xdist's marks of groups: with pytest 9.2 these have no effect, and say nothing.
    """

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongUnitsFirst:
    """Make xdist use this scheduler, whatever ``--dist`` is."""
    config.option.loadscopereorder = False  # it would begin with the group of most tests
    return LongUnitsFirst(config, log)
