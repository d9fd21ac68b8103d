"""Spark's Python workers: their daemon, the warning about a reused plan, garbage collection."""

import gc
import os
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.errors import NodeFailedError, StoreUnreachableError
from dafka_core.model.records import TopicPartition
from dafka_spark import metadata, python_workers
from dafka_spark.options import SourceOptions
from dafka_spark.python_workers import OLD_PLAN_S, hide_frames, settle
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader, MetadataReader
from tests.memory_reader import MemoryReader
from tests.unit.dafka_spark.tasks import Task


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process pass for one that no task has settled."""
    monkeypatch.setattr(os, "getpid", object)
    yield
    gc.unfreeze()


@pytest.mark.parametrize("kind", ["", "partitions"])
@pytest.mark.parametrize(("age_s", "warnings"), [(OLD_PLAN_S - 10, 0), (OLD_PLAN_S + 10, 1)])
def test_a_reused_plan_is_reported_once(
    kind: str,
    age_s: float,
    warnings: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The id of Spark's query, a UUID of version 7, begins with its time."""
    source = MemoryReader({TopicPartition("t", "A"): 3})
    options = SourceOptions.of({"subscribe": "t", **({"metadata": kind} if kind else {})})
    schema = metadata.full(kind) if kind else full()
    reader = (MetadataReader if kind else DafkaBatchReader)(schema, options, source.connect)
    begun_ms = int((time.time() + age_s) * 1000)
    query = str(uuid.UUID(int=begun_ms << 80 | 0x7000 << 64))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    Task(0, {"spark.sql.execution.query.id": query}).begin(monkeypatch, python_workers)
    (task,) = reader.partitions()
    for _ in range(2):
        assert sum(batch.num_rows for batch in reader.read(task)) == (1 if kind else 3)
    reported = [each for each in caplog.messages if "call load() again for each query" in each]
    assert len(reported) == warnings
    assert all(each.startswith("dafka: t at 127.0.0.1:5556:5557: ") for each in reported)


def test_a_worker_excludes_loaded_modules_from_garbage_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    settle()  # outside of tasks
    assert gc.get_freeze_count() == 0
    Task().begin(monkeypatch, python_workers)
    settle()
    frozen = gc.get_freeze_count()
    made = [[number] for number in range(100)]
    settle()
    # Other threads may delete frozen objects; the second call would have frozen the lists.
    assert frozen >= gc.get_freeze_count() > len(gc.get_objects()) >= len(made)


THREADS = """\
import os
import sys
import dafka_spark.daemon
print("dafka_spark.source.partition_reader" in sys.modules)
for thread in os.listdir("/proc/self/task"):
    print(open(f"/proc/self/task/{thread}/comm").read().strip())
"""


def test_its_modules_start_no_threads_that_a_fork_would_lose() -> None:
    """But those of jemalloc, which starts them again after a fork."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    is_loaded, *threads = done.stdout.splitlines()
    assert is_loaded == "True"
    assert len([each for each in threads if each != "jemalloc_bg_thd"]) == 1


@pytest.mark.parametrize("kind", [StoreUnreachableError, NodeFailedError])
def test_only_a_defect_shows_its_frames_and_its_cause(kind: type[Exception]) -> None:
    @hide_frames
    def ask() -> None:
        try:
            raise OSError("of the library")
        except OSError as error:
            raise kind("A", "it is gone") from error

    @hide_frames
    def read() -> Iterator[int]:
        yield 1
        ask()

    for call in (ask, lambda: [*read()]):
        with pytest.raises(kind) as caught:
            call()
        shown = "".join(traceback.format_exception(caught.value))
        is_defect = kind is NodeFailedError
        assert ("of the library" in shown) is ("in ask" in shown) is is_defect
