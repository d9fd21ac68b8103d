"""The package's SBOM in CycloneDX's format.

Dependencies of everyone are "required", those of an extra "optional". It lists this environment's
versions, which are those of constraints.txt.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent

FOR_USERS: Final = ("avro", "console", "kafka", "metrics", "protobuf")
"""Extras of which the package is more than its tests and pages."""


def bom_of(project: dict[str, Any]) -> Bom:
    """The SBOM of a project as pyproject.toml has it.

    Raises:
        PackageNotFoundError: this environment lacks something that the project needs.
    """
    bom = Bom()
    whole = _component(project["name"], project["version"], [project["license"]])
    whole.type = ComponentType.APPLICATION
    bom.metadata.component = whole
    found: dict[str, Component] = {}
    _add(bom, whole, project["dependencies"], found, ComponentScope.REQUIRED)
    for extra in FOR_USERS:
        wanted = project["optional-dependencies"][extra]
        _add(bom, whole, wanted, found, ComponentScope.OPTIONAL)
    return bom


def _add(
    bom: Bom,
    above: Component,
    wanted: Iterable[str],
    found: dict[str, Component],
    scope: ComponentScope,
    extras: Sequence[str] = ("",),
) -> None:
    needed = []
    for requirement in map(Requirement, wanted):
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": each}) for each in extras):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found:
            installed = metadata.distribution(name)
            told = installed.metadata
            licenses = [told[key] for key in ("License-Expression", "License") if key in told]
            found[name] = each = _component(name, installed.version, licenses)
            each.scope = scope
            bom.components.add(each)
            under = installed.requires or ()
            _add(bom, each, under, found, scope, ("", *requirement.extras))
        needed.append(found[name])
    bom.register_dependency(above, needed)


def _component(name: str, version: str, licenses: Sequence[str]) -> Component:
    # Some put the whole text where its name belongs.
    named = [text for text in licenses if len(text) <= 100 and "\n" not in text][:1]
    return Component(
        name=name,
        version=version,
        bom_ref=f"{name}=={version}",
        purl=PackageURL("pypi", name=canonicalize_name(name), version=version),
        licenses=[LicenseFactory().make_from_string(text) for text in named],
    )


def write(directory: Path) -> Path:
    """The SBOM as a file in a directory."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    path = directory / f"{project['name']}.cdx.json"
    path.write_text(JsonV1Dot6(bom_of(project)).output_as_string(indent=2) + "\n")
    return path
