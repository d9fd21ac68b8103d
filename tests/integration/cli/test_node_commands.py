"""``dafka tower``, ``store`` and ``up``: they say where they are, and stop cleanly."""

from __future__ import annotations

import shutil
import signal
import socket
from pathlib import Path

import pytest

from tests.integration.cli.processes import ANY_PORTS, PATIENCE_S, Dafka, run, sentence

STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_tower_says_its_ports_and_stops_on_a_signal(number: int) -> None:
    with Dafka("tower", *ANY_PORTS) as tower:
        facts = tower.ready()
        assert facts["tower"] == f"127.0.0.1:{facts['sub_port']}:{facts['pub_port']}"
        assert min(facts["sub_port"], facts["pub_port"]) > 0
        assert tower.stop(number) == 0
        assert tower.out.rest() == []
        assert tower.err.rest() == [f"tower at {facts['tower']}; Ctrl-C stops it".encode()]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_store_says_where_it_is_and_stops_on_a_signal(
    number: int, lone_tower: str, tmp_path: Path
) -> None:
    with Dafka("store", "--dir", str(tmp_path / "new"), "--tower", lone_tower) as store:
        facts = store.ready()
        assert facts["dir"] == str(tmp_path / "new")
        assert len(facts["address"]) == 32
        assert store.stop(number) == 0
        assert store.out.rest() == []
        assert len(store.err.rest()) == 1


def test_a_second_sigterm_does_no_harm(lone_tower: str, tmp_path: Path) -> None:
    with Dafka("store", "--dir", str(tmp_path), "--tower", lone_tower) as store:
        store.ready()
        store.process.send_signal(signal.SIGTERM)
        assert store.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("kind", ["tower", "store", "up"])
def test_a_node_ends_with_its_parent(kind: str, lone_tower: str, tmp_path: Path) -> None:
    arguments = {
        "tower": ANY_PORTS,
        "store": ("--dir", str(tmp_path), "--tower", lone_tower),
        "up": ("--dir", str(tmp_path), *ANY_PORTS),
    }[kind]
    with Dafka(kind, "--exit-with-parent", *arguments) as node:
        node.ready()
        node.input.close()
        assert node.wait() == 0


def test_up_is_a_cluster(tmp_path: Path) -> None:
    with Dafka("up", "--dir", str(tmp_path), *ANY_PORTS) as cluster:
        facts = cluster.ready()
        assert facts["dir"] == str(tmp_path)
        at = ("--tower", facts["tower"])
        assert run("produce", "t", *at, given=b"1\n2\n").returncode == 0
        assert run("consume", "t", *at, "--from-beginning", "--count", "2").stdout == b"1\n2\n"
        assert cluster.stop(signal.SIGINT) == 0


def test_up_ignores_the_tower_of_the_environment(tmp_path: Path) -> None:
    with Dafka("up", "--dir", str(tmp_path), *ANY_PORTS, DAFKA_TOWER="127.0.0.1:1:2") as cluster:
        cluster.ready()


def test_records_outlive_their_store(lone_tower: str, tmp_path: Path) -> None:
    at = ("--tower", lone_tower)
    with Dafka("store", "--dir", str(tmp_path), *at) as store:
        store.ready()
        assert run("produce", "kept", *at, given=b"1\n").returncode == 0
        assert store.stop() == 0
    with Dafka("store", "--dir", str(tmp_path), *at) as store:
        store.ready()
        assert run("consume", "kept", *at, "--from-beginning", "--count", "1").stdout == b"1\n"


@pytest.mark.parametrize("second", [False, True])
def test_a_store_ends_when_its_directory_is_gone(
    second: bool, lone_tower: str, tmp_path: Path
) -> None:
    arguments = ("store", "--dir", str(tmp_path / "data"), "--tower", lone_tower)
    with Dafka(*arguments) as store:
        store.ready()
        shutil.rmtree(tmp_path / "data")
        if second:
            with Dafka(*arguments) as other:
                other.ready()
                assert store.wait() == 1
                produced = run("produce", "t", "--tower", lone_tower, given=b"1\n")
                assert produced.returncode == 0
        assert store.wait() == 1
        line = store.err.rest()[-1].decode()
        assert line.startswith(f"dafka: store at {tmp_path / 'data'}: the directory or a file in")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        refused = run("tower", "--sub-address", address, "--pub-address", "tcp://127.0.0.1:0")
    assert refused.returncode == 2
    assert "sub_address" in sentence(refused)
    assert address in sentence(refused)
    assert refused.stdout == b""


@pytest.mark.parametrize("below", [".", "new/store"])
def test_a_directory_that_cannot_be_one_is_named(
    below: str, lone_tower: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    refused = run("store", "--dir", str(file / below), "--tower", lone_tower)
    assert refused.returncode == 1
    assert sentence(refused) == (
        f"store at {file / below}: {file} is a file: name a directory, which is made if it is not "
        "there"
    )


def test_a_store_without_a_tower_says_so(tmp_path: Path) -> None:
    refused = run(
        "store", "--dir", str(tmp_path), "--tower", "127.0.0.1:1:2", "--tower-timeout-s", "0.2"
    )
    assert refused.returncode == 1
    assert sentence(refused).startswith("no tower answered at 127.0.0.1:1:2 within 0.2 s")


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_node_still_looking_for_a_tower_stops_on_a_signal(number: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(PATIENCE_S)
        port = mute.getsockname()[1]
        arguments = ("--dir", str(tmp_path), "--tower", f"127.0.0.1:{port}:{port}")
        with Dafka("store", "--wait-for-tower", *arguments) as store:
            mute.accept()[0].close()
            assert store.stop(number) == 128 + number
            assert store.err.rest() == []
