"""The wheel that users install."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from scripts.package import PACKAGES, ROOT, build_wheel


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
