"""The world of a script."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.scripts.script import Script


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Script]:
    script = Script(tmp_path)
    with script.closing:
        yield script
