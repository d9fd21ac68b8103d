"""``--metrics`` of long-running commands."""

from pathlib import Path

from dafka_core.testing import wait_until
from tests.integration.cli.processes import ANY_PORTS, Dafka, run, succeed
from tests.integration.ops.conftest import ask


def test_up_tells_of_its_tower_and_its_store(tmp_path: Path) -> None:
    directory = str(tmp_path / "d")
    with Dafka("up", "--dir", directory, "--metrics", "0", *ANY_PORTS) as cluster:
        ready = cluster.ready()
        text = ask(f"{ready['metrics']}/metrics").text
        assert f'dafka_node_ready{{kind="store",node="{ready["address"]}"}} 1.0' in text
        assert f'dafka_node_ready{{kind="tower",node="{ready["tower"]}"}} 1.0' in text
        assert ask(f"{ready['metrics']}/readyz").status == 200


def test_a_store_that_looks_for_a_tower_runs_and_is_not_ready(tmp_path: Path) -> None:
    with Dafka(
        *("store", "--dir", str(tmp_path / "d"), "--tower", "127.0.0.1:1:1"),
        *("--wait-for-tower", "--metrics", "0"),
    ) as store:
        line = store.err.next()
        assert line is not None
        assert line.startswith(b"metrics at http://127.0.0.1:")
        url = line.decode().split()[-1].removesuffix("/metrics")
        assert ask(f"{url}/healthz").status == 200
        status, text, _ = ask(f"{url}/readyz")
        assert status == 503
        assert "no store serves yet" in text


def test_where_nothing_is_served_its_options_are_refused() -> None:
    done = run("tower", "--metrics-topics", "5", *ANY_PORTS)
    assert done.returncode == 2
    assert b"'metrics_topics'" in done.stderr
    assert b"--metrics 9108" in done.stderr
    done = run("tower", "--metrics", "70000", *ANY_PORTS)
    assert done.returncode == 2
    assert b"must be HOST:PORT, as" in done.stderr


def test_who_produces_and_who_follows_are_watched_as_well(tower: str) -> None:
    flags = ("--tower", tower, "--metrics", "0")
    with Dafka("consume", "watched", *flags) as consumer, Dafka("produce", "watched", *flags) as it:
        for process, sample in (
            (consumer, "dafka_consumer_topics{"),
            (it, "dafka_producer_next_offset{"),
        ):
            line = process.err.next()
            assert line is not None
            assert line.startswith(b"metrics at ")
            url = line.decode().split()[-1]
            wait_until(lambda url=url, sample=sample: sample in ask(url).text)  # type: ignore[misc]
        it.input.close()
        assert it.wait() == 0


def test_what_ends_by_itself_says_that_it_is_not_watched(tower: str) -> None:
    succeed("produce", "ends", "--tower", tower, given=b"a\n")
    done = succeed("consume", "ends", "--tower", tower, "--exit-at-end", "--metrics", "0")
    assert b"--metrics is ignored" in done.stderr
