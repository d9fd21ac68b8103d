"""docs/start.md: a newcomer's first ten minutes, with the wheel, print what the page says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import colors
from matplotlib import pyplot as plt

from scripts import first_minutes


@pytest.mark.nightly
def test_the_first_ten_minutes_are_as_the_page_says(tmp_path: Path) -> None:
    page = first_minutes.PAGE.read_text(encoding="utf-8")
    done = first_minutes.lived(page, tmp_path)
    assert first_minutes.same(done) == first_minutes.same(page), (
        tmp_path / "spark.log"
    ).read_text()
    picture = plt.imread(tmp_path / "weather.png")
    for line in ("C0", "C1"):
        near = np.abs(picture[..., :3] - colors.to_rgb(line)).max(axis=2) < 0.02
        assert near.sum() > 500
