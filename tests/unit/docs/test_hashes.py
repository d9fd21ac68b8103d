"""Installed packages have their pinned hashes."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from scripts.hashes import CONSTRAINTS, LISTS, ROOT

HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pins(text: str) -> set[str]:
    found = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==(\S+)", text, re.MULTILINE)
    return {f"{canonicalize_name(name)}=={version}" for name, version in found}


@pytest.mark.parametrize("name", LISTS)
def test_each_version_of_a_list_is_that_of_the_constraints_and_has_hashes(name: str) -> None:
    text = (ROOT / "hashes" / f"{name}.txt").read_text()
    pinned = [each for each in re.split(r"\n(?=\S)", text) if not each.startswith("#")]
    assert all(HASH.search(each) for each in pinned)
    assert len(pins(text)) == len(pinned) > 0
    assert pins(text) <= pins((ROOT / CONSTRAINTS).read_text())


def test_each_constraint_has_hashes_but_what_makes_them() -> None:
    lists = "\n".join((ROOT / "hashes" / f"{name}.txt").read_text() for name in LISTS)
    makers = {"build", "pip-tools", "pyproject-hooks", "wheel"}
    missing = pins((ROOT / CONSTRAINTS).read_text()) - pins(lists)
    assert {each.split("==")[0] for each in missing} <= makers


def test_only_lists_with_hashes_are_installed() -> None:
    for path in ("Makefile", "scripts/environment.sh"):
        lines = [each for each in (ROOT / path).read_text().splitlines() if "pip install" in each]
        assert lines
        assert all("--require-hashes" in each or "--no-deps" in each for each in lines)


def wheel(directory: Path) -> Path:
    path = directory / "made_here-1.0-py3-none-any.whl"
    info = "made_here-1.0.dist-info"
    files = {
        "made_here.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: made-here\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        rows = []
        for name, text in files.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            rows.append(f"{name},sha256={digest.decode().rstrip('=')},{len(text)}\n")
        archive.writestr(f"{info}/RECORD", "".join(rows) + f"{info}/RECORD,,\n")
    return path


def install(directory: Path, line: str) -> subprocess.CompletedProcess[str]:
    wanted = directory / "wanted.txt"
    wanted.write_text(line + "\n")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--require-hashes"]
    command += ["--find-links", str(directory), "--target", str(directory / "installed")]
    command += ["--requirement", str(wanted)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    right = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    installed = tmp_path / "installed" / "made_here.py"
    for line, why in (
        (f"made-here==1.0 --hash=sha256:{'0' * 64}", "DO NOT MATCH THE HASHES"),
        ("made-here==1.0", "Hashes are required"),
    ):
        refused = install(tmp_path, line)
        assert refused.returncode != 0
        assert why in refused.stderr
        assert not installed.exists()
    done = install(tmp_path, f"made-here==1.0 --hash=sha256:{right}")
    assert done.returncode == 0, done.stderr
    assert installed.exists()
