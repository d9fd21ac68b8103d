"""Tables of the docs have rows as wide as their headings, and name tests that exist.

Pictures of lines and boxes are those that are drawn now, and can be read.
"""

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts import pictures
from tests.pages import PAGES, ROOT


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_each_row_has_a_cell_for_each_heading(path: Path) -> None:
    """A page shows no cell beyond the last heading."""
    text = re.sub(
        r"```.*?```|`[^`\n]*`|\\\|", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = table.splitlines()
        assert [line for line in lines if line.count("|") != lines[0].count("|")] == []


@pytest.mark.parametrize(
    ("page", "least", "is_without"),
    [
        # One test tries all attacks on the mesh; another one compares it with the page.
        ("tests/situations.md", 130, lambda row: row[-1].strip() in ("fails", "with keys")),
        ("docs/features.md", 50, lambda row: row[-2][:3] == "no:"),
    ],
)
def test_each_row_names_a_test_that_is_there(
    page: str, least: int, is_without: Callable[[list[str]], bool]
) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    rows = [line[2:].removesuffix("|").split(" | ") for line in lines if line.startswith("| ")]
    rows = [row for row in rows if row[-1].strip() not in ("tried by", "shown by")]
    assert len(rows) >= least
    assert len({tuple(row) for row in rows}) == len(rows)
    wrong = []
    for row in rows:
        named = re.findall(r"(tests/[\w/]+\.py)(?:::| \")(test_\w+)", row[-1])
        for path, test in named:
            file = ROOT / path
            if not file.exists() or f"def {test}(" not in file.read_text(encoding="utf-8"):
                wrong.append(f"{path}::{test}")
        if not (named or is_without(row)):
            wrong.append(" | ".join(row))
    assert wrong == []


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_as_it_is_drawn_now(name: str) -> None:
    drawn = pictures.PICTURES[name]()
    assert (pictures.IMAGES / f"{name}.svg").read_text(encoding="utf-8") == drawn
    svg = ET.fromstring(drawn)
    assert svg.attrib["aria-label"]
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    for text in svg.iter("{http://www.w3.org/2000/svg}text"):
        middle, half = float(text.attrib["x"]), len(text.text or "") * pictures.LETTER_WIDTH / 2
        left = middle - half if "m" in text.attrib.get("class", "").split() else middle
        assert 0 < left < left + 2 * half < width, text.text
        assert 0 < float(text.attrib["y"]) < height, text.text
