"""The wheel that users install, its SBOM, and the hashes of packages that are installed."""

import json
import re
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import sbom
from scripts.hashes import CONSTRAINTS, LISTS, ROOT
from scripts.package import PACKAGES, build_wheel


def test_it_is_one_and_lists_what_the_package_needs_at_the_versions_that_were_tested(
    tmp_path: Path,
) -> None:
    text = sbom.write(tmp_path).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {each["name"]: each for each in json.loads(text)["components"]}
    project = tomllib.loads((sbom.ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(each).name for each in project["dependencies"]}
    required = {name for name, each in listed.items() if each["scope"] == "required"}
    assert needed <= required
    assert {"py4j", "starlette", "h11", "cramjam"} <= listed.keys()
    assert "starlette" not in required
    pinned = (sbom.ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    assert all(f"{name}=={each['version']}" in pinned for name, each in listed.items())


def test_the_wheel_has_jobs_and_notebooks_inside_the_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        names = {PurePosixPath(name) for name in wheel.namelist()}
    tops = {name.parts[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    for kind, pattern in (("jobs", "*.py"), ("notebooks", "*.ipynb")):
        inside = {name.name for name in names if name.match(f"dafka_spark/{kind}/{pattern}")}
        assert inside == {path.name for path in (sbom.ROOT / kind).glob(pattern)}
        assert inside
    assert not any("demo" in name.parts for name in names)


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
