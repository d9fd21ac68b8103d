"""The wheel that users install, and the SBOM that is built beside it."""

from __future__ import annotations

import json
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from scripts import sbom
from scripts.package import PACKAGES, ROOT, build_wheel


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
        assert inside == {path.name for path in (ROOT / kind).glob(pattern)}
        assert inside
    assert not any("demo" in name.parts for name in names)
