"""A newcomer's first ten minutes with the wheel print the output in docs/start.md."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colors
from matplotlib import pyplot as plt

from scripts import first_minutes
from scripts.notebooks import names

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("newcomer")


@pytest.fixture(scope="module")
def done(directory: Path) -> str:
    return first_minutes.lived(first_minutes.PAGE.read_text(encoding="utf-8"), directory)


def test_the_first_ten_minutes_print_the_pages_output(done: str, directory: Path) -> None:
    page = first_minutes.PAGE.read_text(encoding="utf-8")
    log = directory / "spark.log"
    assert first_minutes.same(done) == first_minutes.same(page), log.read_text()
    picture = plt.imread(directory / "weather.png")
    for line in ("C0", "C1"):
        near = np.abs(picture[..., :3] - colors.to_rgb(line)).max(axis=2) < 0.02
        assert near.sum() > 500


@pytest.mark.usefixtures("done")
def test_the_installed_command_lists_jobs_and_notebooks(directory: Path) -> None:
    environment = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}

    def output(*arguments: str) -> str:
        command = [str(directory / ".venv" / "bin" / "dafka"), *arguments]
        return subprocess.run(
            command, cwd=directory, env=environment, check=True, capture_output=True, text=True
        ).stdout

    jobs = {path.stem for path in (first_minutes.ROOT / "jobs").glob("*.py")}
    assert {json.loads(line)["job"] for line in output("job", "--json").splitlines()} == jobs
    listed = output("notebooks", "--json").splitlines()
    assert [json.loads(line)["notebook"] for line in listed] == names()
    assert output("job", "mirror", "--help").startswith("usage: dafka job mirror ")
