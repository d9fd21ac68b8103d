"""kcat, where it is installed: Debian's has an older librdkafka than Python's clients bring."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from dafka_core import EmbeddedCluster
from tests.forked import ForkedCluster
from tests.integration.kafka.clients.clients import PATIENCE_S

KCAT = shutil.which("kcat") or ""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with ForkedCluster(kafka=True) as cluster:
        yield cluster


@pytest.mark.skipif(not KCAT, reason="kcat is not installed (Debian: apt-get install kcat)")
def test_kcat_lists_writes_and_reads(cluster: EmbeddedCluster) -> None:
    def kcat(*arguments: str, given: bytes = b"") -> bytes:
        command = [KCAT, "-q", "-b", cluster.bootstrap_servers, *arguments]
        done = subprocess.run(
            command, check=True, input=given, capture_output=True, timeout=PATIENCE_S
        )
        return done.stdout

    compressions = ("none", "gzip", "snappy", "lz4", "zstd")
    for name in compressions:
        kcat("-P", "-t", "t", "-K:", "-H", "h=1", "-z", name, given=f"{name}:v\n".encode() * 100)
    lines = kcat("-C", "-t", "t", "-e", "-o", "beginning", "-f", r"%o %k %s %h\n")
    assert lines.decode().splitlines() == [
        f"{number} {compressions[number // 100]} v h=1" for number in range(500)
    ]
    assert kcat("-C", "-t", "t", "-e", "-o", "-3", "-f", "%o,") == b"497,498,499,"
    assert kcat("-Q", "-t", "t:0:1").split() == [b"t", b"[0]", b"offset", b"0"]
    [topic] = json.loads(kcat("-L", "-J", "-t", "t"))["topics"]
    assert [each["partition"] for each in topic["partitions"]] == [0]
    read = ("-X", "auto.offset.reset=earliest", "-c", "500", "-f", "%o,")
    assert len(kcat("-G", "g", *read, "t").split(b",")) == 501
