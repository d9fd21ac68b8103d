"""An extension of another package, as docs/architecture.md shows it."""

import json
import os
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, Producer, RecordBatch, Store, Tower
from dafka_core.model.records import TopicPartition
from dafka_core.testing import topic_echo, wait_until
from tests.integration.cli.processes import ANY_PORTS, environment
from tests.integration.nodes.peers import ANY_PORTS as NODE_PORTS
from tests.pages import ROOT, blocks

PAGE = {each.language: each.text for each in blocks() if each.page == "docs/architecture.md"}


def installed(directory: Path, group: str, name: str, value: str) -> str:
    """Install a package that has an entry point; return the path on which it is found."""
    info = directory / "another_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: another-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    return os.pathsep.join((str(directory), str(ROOT)))


@contextmanager
def running(path: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """Run ``dafka`` until it is left; yield what it prints with READY."""
    command = [sys.executable, "-m", "dafka_core.cli", *arguments, "--exit-with-parent"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment(PYTHONPATH=path)) as it:
        assert it.stdin is not None
        assert it.stdout is not None
        yield json.loads(it.stdout.readline().removeprefix(b"READY "))
        it.stdin.close()
        assert it.wait() == 0


def test_the_extension_of_the_page_copies_a_topic_and_is_measured(tmp_path: Path) -> None:
    assert PAGE["python"].strip() == Path(topic_echo.__file__).read_text(encoding="utf-8").strip()
    ((group, points),) = tomllib.loads(PAGE["toml"])["project"]["entry-points"].items()
    ((name, value),) = points.items()
    path = installed(tmp_path, group, name, value)
    options = ("--echo", "flights", "--metrics", "0", "--dir", str(tmp_path / "store"))
    with running(path, "up", *options, *ANY_PORTS) as ready:
        with (
            Consumer(tower=ready["tower"]) as consumer,
            Producer("flights", tower=ready["tower"]) as p,
        ):
            consumer.subscribe("flights.echo")
            p.publish_many([b"one", b"two", b"three"])
            p.flush(30.0)
            found: list[bytes] = []
            for batch in consumer.batches(60.0):
                found += batch.values
                if len(found) == 3:
                    break
        assert found == [b"one", b"two", b"three"]

        def served(page: str) -> str:
            with urllib.request.urlopen(f"{ready['metrics']}/{page}", timeout=60) as answer:
                return str(answer.read().decode())

        sample = 'dafka_echo_records_total{kind="topicecho",node="flights"} 3.0'
        wait_until(lambda: sample in served("metrics"))
        assert "dafka_store_" not in served("metrics?name[]=dafka_echo_records_total")
        assert sample in served("metrics?name[]=dafka_echo_records_total")
        assert "3 records were copied" in served("readyz?json")


def test_a_slow_disk_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def append(*_: object, timeout_s: float) -> range:
        raise TimeoutError

    with Tower(**NODE_PORTS) as tower, Store(tmp_path, tower=tower.tower) as store:
        monkeypatch.setattr(store.append_queue, "append", append)
        echo = topic_echo.TopicEcho(store, "t")
        store.append_queue.put(RecordBatch.of(TopicPartition("t", "P"), 0, [b"x"])).result(30.0)
        echo._thread.join()
        assert [each.sentence for each in echo.findings()] == [
            "nothing more is copied: the disk takes too long"
        ]
        echo.close()


def test_an_extension_that_cannot_be_loaded_is_named_with_its_package(tmp_path: Path) -> None:
    path = installed(tmp_path, "dafka.store_extensions", "broken", "no_such_module:Extension")
    command = [sys.executable, "-m", "dafka_core.cli", "--help"]
    done = subprocess.run(
        command, env=environment(PYTHONPATH=path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("dafka: entry point of dafka.store_extensions 'broken'")
    assert "update or remove package another-package" in done.stderr
