"""What ``dafka`` does without a cluster."""

from __future__ import annotations

from importlib import metadata

import pytest

from dafka_core.cli.version_command import versions
from tests.integration.cli.processes import refusal, succeed


def test_the_versions_are_said() -> None:
    shown = succeed("--version")
    assert shown.stdout.decode().startswith("dafka-spark ")
    assert f"pyzmq {metadata.version('pyzmq')}" in shown.stdout.decode()
    assert versions()["pyarrow"] == metadata.version("pyarrow")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_a_script_that_asks_for_words(shell: str) -> None:
    shown = succeed("completion", shell)
    assert f"{shell}_complete" in shown.stdout.decode()


def test_words_are_completed() -> None:
    def completed(line: str) -> list[str]:
        last = str(len(line.split(" ")) - 1)
        shown = succeed(_DAFKA_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=last)
        return [line.partition(",")[2] for line in shown.stdout.decode().split()]

    assert sorted(completed("dafka con")) == ["config", "console", "consume"]
    assert completed("dafka topics --min") == ["--min-stores"]
    for wrong, says in (
        (["tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        ([], "Missing argument 'bash|zsh|fish'. Choose from: bash, zsh, fish"),
    ):
        assert f"{says} (see 'dafka completion --help')" in refusal(2, "completion", *wrong)
