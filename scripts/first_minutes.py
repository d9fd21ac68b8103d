"""Follow docs/start.md, and write its outputs: ``python scripts/first_minutes.py``.

The page is the script. A block of Python is a file, named in its first line; each line of a block
``console`` that begins with a dollar sign is a command, followed by its output. Everything runs in
a temporary directory, by the wheel alone: nothing is imported from the source.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from contextlib import ExitStack
from pathlib import Path

from scripts.package import build_wheel
from scripts.transcripts import output, served

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "start.md"
PICTURE = ROOT / "docs" / "images" / "weather.png"
BLOCK = re.compile(r"```(console|python)\n(.*?)```", re.DOTALL)
SAME = {
    r"(?m)^\S+Z WARNING .*\n": "",  # as of a slow disk
    r"(?m)^no store has topic .*\n": "",  # the thermometers have not begun
    r"\d+ seconds of": "SOME seconds of",
    r"\b[0-9A-F]{32}\b": "0" * 32,
    r"(127\.0\.0\.1:)\d+": r"\1PORT",
    r"(PORT:)\d+": r"\1PORT",
    r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)": "TIME",
    r"\b\d+\.\d+[\w.]*": "VERSION",
}
"""Parts that differ each time, and their replacements."""

DEFAULT_TOWER = "127.0.0.1:5556:5557"  # the tower's address on the page, where the ports are free

FOR_ONE_WHEEL = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_FORCE_REINSTALL": "1"}
"""The wheel's dependencies are installed: in the environment that runs this."""


class Minutes:
    """A newcomer's directory, with the wheel in ``dist``, and the programs that run in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running = ExitStack()
        build_wheel(directory / "dist")
        made = directory / ".venv"
        venv.create(made, symlinks=True)
        [packages] = made.glob("lib/python*/site-packages")
        (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = made / "bin" / "pip"
        pip.write_text(f'#!/bin/sh\nexec "{made}/bin/python" -m pip "$@"\n')
        pip.chmod(0o755)
        settings = directory / "settings" / "dafka"
        settings.mkdir(parents=True)
        addresses = "".join(f'{kind}_address = "tcp://127.0.0.1:0"\n' for kind in ("sub", "pub"))
        (settings / "dafka.toml").write_text(f"[commands.up]\n{addresses}")
        kept = {name: each for name, each in os.environ.items() if not name.startswith("DAFKA_")}
        self.environment = kept | {
            **FOR_ONE_WHEEL,
            "PATH": f"{made}/bin{os.pathsep}{kept['PATH']}",
            "XDG_CONFIG_HOME": str(settings.parent),
            "PYSPARK_PYTHON": str(made / "bin" / "python"),
        }
        for name in ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON"):
            self.environment.pop(name, None)

    def done(self, block: re.Match[str]) -> str:
        """A block of the page as it is when it has been done."""
        language, text = block.groups()
        if language == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (self.directory / name).write_text(text)
            return block[0]
        steps = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        shown = "".join(f"$ {step}\n{self._said(step)}" for step in steps)
        return f"```console\n{shown.replace(str(self.directory), '/home/you')}```"

    def close(self) -> None:
        """End the running programs."""
        self._running.close()

    def _said(self, step: str) -> str:
        if step.endswith(" &"):
            return self._begun(step.removesuffix(" &"))
        return output(step, self.directory, self.environment)

    def _begun(self, command: str) -> str:
        """Return a command's output until it serves; a program of the page prints nothing."""
        if not command.startswith("dafka "):
            process = subprocess.Popen(command.split(), cwd=self.directory, env=self.environment)
            self._running.callback(process.wait)
            self._running.callback(process.terminate)
            return ""
        said = self._running.enter_context(served(command, self.directory, self.environment))
        found = re.search("DAFKA_TOWER=(.*)", said)
        assert found, said
        self.environment["DAFKA_TOWER"] = found[1]
        return said.replace(found[1], DEFAULT_TOWER)


def same(page: str) -> str:
    """A page without what is another thing each time."""
    for pattern, replacement in SAME.items():
        page = re.sub(pattern, replacement, page)
    return page


def lived(page: str, directory: Path) -> str:
    """Return the page after all of it was run in a directory, from the first block on."""
    minutes = Minutes(directory)
    try:
        return BLOCK.sub(minutes.done, page)
    finally:
        minutes.close()


def main() -> None:
    """Run the page, and update it and its picture."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        text = lived(PAGE.read_text(encoding="utf-8"), directory)
        PICTURE.write_bytes((directory / "weather.png").read_bytes())
    PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{PAGE} and {PICTURE} are up to date\n")


if __name__ == "__main__":
    main()
