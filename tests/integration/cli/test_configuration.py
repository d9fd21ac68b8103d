"""Options from the environment and from a file; ``dafka config`` shows where each comes from."""

import json
from pathlib import Path

from tests.integration.cli.processes import ANY_PORTS, Dafka, refusal, run, sentence, succeed


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


def rows(*arguments: str, file: Path) -> dict[tuple[str, str], tuple[str, str]]:
    shown = succeed("config", *arguments, "--json", DAFKA_CONFIG=str(file), DAFKA_TIMEOUT_S="3")
    lines = map(json.loads, shown.stdout.splitlines())
    return {(each["command"], each["option"]): (each["value"], each["from"]) for each in lines}


def test_each_value_is_shown_with_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "dafka.toml"
    file.write_text("acks = 2\n[commands.produce]\nhost = 'h'\n", encoding="utf-8")
    found = rows(file=file)
    assert found["", "acks"] == ("2", str(file))
    assert found["", "timeout_s"] == ("3.0", "DAFKA_TIMEOUT_S")
    assert found["", "host"] == ("127.0.0.1", "default")
    assert found["produce", "host"] == ("h", f"{file} [commands.produce]")
    of_produce = rows("produce", "--acks", "5", file=file)
    assert of_produce["produce", "acks"] == ("5", "flag")
    assert of_produce["produce", "host"] == ("h", f"{file} [commands.produce]")
    assert of_produce["produce", "envelope"] == ("auto", "default")
    assert ("produce", "timeout_s") not in of_produce
    assert rows("store", "--dir", "d", file=file)["store", "dir"] == ("d", "flag")
    assert rows("checkpoint", "verify", file=file)["checkpoint verify", "timeout_s"][0] == "3.0"
    assert b"configuration file" in run("config", DAFKA_CONFIG=str(file)).stderr


def test_a_command_or_a_flag_that_is_not_there_gets_a_sentence() -> None:
    assert "unknown command 'prodcue' (did you mean 'produce'?)" in sentence(
        run("config", "prodcue")
    )
    refused = refusal(2, "config", "produce", "--akcs", "2")
    assert "unknown option --akcs; did you mean --acks?" in refused


def test_json_in_the_environment_gives_way_to_a_format(tower: str) -> None:
    run("produce", "formatted", "--tower", tower, given=b"a\n")
    reading = ("consume", "formatted", "--tower", tower, "--exit-at-end")
    assert succeed(*reading, "--format", "%o", DAFKA_JSON="true").stdout == b"0\n"
    assert json.loads(succeed(*reading, DAFKA_JSON="true").stdout)["value"] == "a"
