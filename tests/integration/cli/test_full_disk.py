"""``dafka up`` outlives a full disk: it serves readers, refuses writes by name, and recovers."""

import json
import os
import resource
import subprocess
from pathlib import Path

from dafka_core.testing import wait_until
from tests.integration.cli.processes import ANY_PORTS, Dafka, command, environment, run, succeed
from tests.integration.ops.conftest import ask
from tests.integration.storage.containers import beside, can_contain, contained

MOUNTED_BYTES = 48 << 20
FIRST = b"".join(b"%d\n" % number for number in range(10))
LATER = b"".join(os.urandom(50_000).hex().encode() + b"\n" for _ in range(300))


class FullDisk:
    """The disk of a process: a small file system, or else a limit on the size of its files."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process = process
        self._ballast = directory / "ballast"

    def fill(self) -> None:
        if can_contain():
            text = f"head -c {MOUNTED_BYTES} /dev/zero > {self._ballast} || true"
            subprocess.run(
                beside(self._process, ["sh", "-c", text]), check=True, stderr=subprocess.DEVNULL
            )
        else:
            size = (self._ballast.parent / "store/data.mdb").stat().st_size
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, -1))

    def empty(self) -> None:
        if can_contain():
            subprocess.run(beside(self._process, ["rm", str(self._ballast)]), check=True)
        else:
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (-1, -1))


def test_up_goes_on_while_the_disk_of_its_store_is_full(tmp_path: Path) -> None:
    up = command(["up", "--dir", str(tmp_path / "store"), "--metrics", "0", *ANY_PORTS])
    mount = f"mount -t tmpfs -o size={MOUNTED_BYTES} tmpfs {tmp_path}"
    with subprocess.Popen(
        contained(up, mount),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline().removeprefix("READY "))
            tower, url = ("--tower", ready["tower"]), ready["metrics"]
            disk = FullDisk(process, tmp_path)
            succeed("produce", "t", *tower, given=FIRST)
            disk.fill()
            with Dafka("produce", "t", *tower) as producer:
                producer.input.write(LATER)
                producer.input.close()
                wait_until(lambda: ask(f"{url}/readyz").status == 503)
                assert "the disk is full" in ask(f"{url}/readyz").text
                assert ask(f"{url}/healthz").status == 200
                told = run("status", *tower)
                assert told.returncode == 1
                assert b"the disk is full" in told.stdout
                refused = run("delete", "t", "--yes", *tower)
                assert refused.returncode == 1
                assert b"if a disk is full, use 'dafka trim TOPIC --before end'" in refused.stderr
                read = run("consume", "t", "--exit-at-end", "--count", "10", *tower)
                assert read.stdout == FIRST
                assert process.poll() is None
                disk.empty()
                assert producer.wait() == 0
                assert b"300 records acknowledged" in producer.err.rest()
            succeed("status", *tower)
            read = run("consume", "t", "--exit-at-end", *tower)
            assert sorted(read.stdout.splitlines()) == sorted((FIRST + LATER).splitlines())
        finally:
            process.kill()
