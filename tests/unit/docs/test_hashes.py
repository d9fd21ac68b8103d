"""Installed packages have their pinned hashes."""

from __future__ import annotations

import re

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
