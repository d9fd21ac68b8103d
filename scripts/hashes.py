"""Writes the hashes of everything that is installed, from pyproject.toml and constraints.txt.

``python scripts/hashes.py`` after a change to either.  ``pip-compile`` asks the package index that
pip is configured with for the SHA-256 of every file of each version: other Pythons and machines
install from the same lists.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CONSTRAINTS: Final = "constraints.txt"

_PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
_EXTRAS: Final = _PROJECT["optional-dependencies"]


def _without_spark(*extras: str) -> tuple[str, ...]:
    wanted = [*_PROJECT["dependencies"], *(each for name in extras for each in _EXTRAS[name])]
    return tuple(each for each in wanted if not each.startswith("pyspark"))


LISTS: Final = {
    "build": ("hatchling", "editables", "setuptools"),
    "image": _without_spark("console", "kafka", "metrics"),
    "spark_image": ("pyspark", "pandas", *_EXTRAS["avro"], *_EXTRAS["protobuf"]),
    "environment": (),
    "fuzz": ("atheris",),
    "audit": ("pip-audit",),
    "peers": ("nats-py",),
}
"""By file in ``hashes/``: what is wanted.  What they depend on is found, and listed, too."""

EXTRAS: Final = "demo,docs,notebooks,test"


def write(programs: Path, name: str, directory: Path) -> None:
    """Write the hashes of one list, with a virtual environment's programs."""
    source = directory / f"{name}.in"
    source.write_text("\n".join(LISTS[name]) + "\n")
    wanted = ["--extra", EXTRAS, "pyproject.toml"] if name == "environment" else [str(source)]
    made = directory / f"{name}.txt"
    quiet = "--quiet --no-config --no-header --no-annotate --strip-extras --allow-unsafe"
    hidden = "--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options"
    command = [str(programs / "pip-compile"), *quiet.split(), *hidden.split()]
    command += ["--generate-hashes", "--constraint", CONSTRAINTS]
    subprocess.run([*command, "--output-file", str(made), *wanted], cwd=ROOT, check=True)
    # An extra that names other extras of the project makes it a part of itself.
    lines = made.read_text().splitlines(keepends=True)
    kept = [each for each in lines if not each.startswith("#") and " @ file:" not in each]
    head = "# Made by scripts/hashes.py from pyproject.toml and constraints.txt.\n"
    (ROOT / "hashes" / made.name).write_text(head + "".join(kept))


def main() -> None:
    """Write the named lists, or all."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        venv.create(directory, with_pip=True)
        pip = [str(directory / "bin" / "pip"), "install", "--quiet", "--constraint", CONSTRAINTS]
        subprocess.run([*pip, "pip-tools"], cwd=ROOT, check=True)
        for name in sys.argv[1:] or LISTS:
            write(directory / "bin", name, directory)


if __name__ == "__main__":
    main()
