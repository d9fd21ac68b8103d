"""The SBOM that is built beside the package."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from scripts import sbom


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
