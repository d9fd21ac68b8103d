"""``dafka`` where only the package itself is installed, without any extra."""

import json
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from tests.integration.cli.processes import ANY_PORTS, ended, environment

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"

EXTRAS = {
    "avro": ["fastavro"],
    "console": ["prometheus_client", "starlette", "uvicorn"],
    "kafka": ["cramjam", "crc32c", "kafka", "scramp"],
    "metrics": ["prometheus_client", "starlette", "uvicorn"],
    "protobuf": ["google.protobuf"],
}
"""The Python packages of each extra."""

WITHOUT = """
import json, sys
for name in {packages!r}:
    sys.modules[name] = None
from dafka_core.cli import main
codes = []
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as error:
        codes.append(error.code)
print(json.dumps(codes), file=sys.stderr)
"""


def run(*commands: str) -> tuple[list[int], str]:
    """Run commands in one process without extras; return exit codes and output."""
    program = WITHOUT.format(packages=[*chain(*EXTRAS.values())])
    done = ended(
        [sys.executable, "-c", program, json.dumps([command.split() for command in commands])],
        text=True,
        env=environment(COLUMNS="200"),
        check=True,
    )
    *printed, codes = done.stderr.splitlines()
    return json.loads(codes), "\n".join([done.stdout, *printed])


def test_the_extras_are_those_of_the_package() -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - {"demo", "docs", "notebooks", "test"}
    for extra, packages in EXTRAS.items():
        assert len(declared[extra]) == len(packages)


def test_all_commands_explain_themselves() -> None:
    commands = ["", "store", "up", "status", "kafka", "groups", "kafka-user", "console", "top"]
    codes, printed = run(*(f"{command} --help" for command in commands))
    assert codes == [0] * len(commands), printed
    text = " ".join(printed.split())
    for extra in ("console", "kafka", "metrics"):
        assert f"extra '{extra}'" in text or f"extra `{extra}`" in text


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("console", "console"),
        (f"up {' '.join(ANY_PORTS)} --kafka 127.0.0.1:0", "kafka"),
        ("up --metrics 0", "metrics"),
    ],
)
def test_a_command_that_needs_an_extra_names_it(
    command: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes, printed = run(command)
    assert codes == [2]
    assert f"pip install 'dafka-spark[{extra}]'" in printed
