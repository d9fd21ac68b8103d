"""The pages of the project, and the blocks of code in them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


class Block(NamedTuple):
    """A block of code: in which section of which page, of which language."""

    page: str
    heading: str
    language: str
    text: str


def blocks() -> Iterator[Block]:
    """All of all pages."""
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        for section in re.split(r"\n##+ ", path.read_text(encoding="utf-8")):
            heading = section.split("\n", 1)[0].removeprefix("# ")
            for language, text in re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL):
                yield Block(page, heading, language, text)


def example(page: str, heading: str, language: str = "python") -> str:
    """The only block of its language under a heading."""
    [text] = [block.text for block in blocks() if block[:3] == (page, heading, language)]
    return text
