"""``dafka config``: each value, and where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.cli.processes import refusal, run, sentence, succeed


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
