"""Commands take options without flags from the environment and from a file."""

from __future__ import annotations

from pathlib import Path

from tests.integration.cli.processes import ANY_PORTS, Dafka, run, sentence


def test_a_flag_counts_more_than_the_environment_and_that_more_than_the_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "dafka.toml"
    file.write_text("tower = '127.0.0.1:1:1'\ntower_timeout_s = 0.1\n", encoding="utf-8")
    shown = run("topics", DAFKA_CONFIG=str(file))
    assert "no tower answered at 127.0.0.1:1:1 within 0.1 s" in sentence(shown)
    shown = run("topics", "--config", str(file), DAFKA_TOWER="127.0.0.1:2:2")
    assert "no tower answered at 127.0.0.1:2:2 within 0.1 s" in sentence(shown)
    flags = ("--tower", "127.0.0.1:3:3", "--tower", "127.0.0.1:4:4")
    shown = run("topics", *flags, DAFKA_CONFIG=str(file), DAFKA_TOWER="127.0.0.1:2:2")
    assert "answered at 127.0.0.1:3:3, 127.0.0.1:4:4 within 0.1 s" in sentence(shown)


def test_up_and_store_take_their_settings_from_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    kept = tmp_path / "kept"
    file.write_text(
        f"tower = '127.0.0.1:1:1'\n[profiles.desk]\ndir = '{kept}'\nnum_partitions = 3\n"
        f"sub_address = '{ANY_PORTS[1]}'\npub_address = '{ANY_PORTS[3]}'\n",
        encoding="utf-8",
    )
    with Dafka("--config", str(file), "up", "--profile", "desk") as node:
        ready = node.ready()
        assert ready["dir"] == str(kept)
        assert kept.is_dir()
        # A setting of the gateway's is for clusters with one; as a flag it would be refused.
        assert "kafka" not in ready
        other = str(tmp_path / "other")
        with Dafka(
            *("store", "--config", str(file), "--profile", "desk", "--dir", other),
            DAFKA_TOWER=ready["tower"],
        ) as store:
            assert store.ready()["dir"] == other
    refused = run("store", "--dir", other, "--num-partitions", "3")
    assert "option 'num_partitions' = '3': is the gateway's" in sentence(refused)


def test_the_environments_wrong_value_is_named() -> None:
    refused = run("produce", "t", DAFKA_ACKS="two")
    assert refused.returncode == 2
    assert sentence(refused) == (
        "environment variable 'DAFKA_ACKS' = 'two': must be a whole number"
    )
