"""The pictures of lines and boxes are those that are drawn now, and can be read."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from scripts import pictures


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
