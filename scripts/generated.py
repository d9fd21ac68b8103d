"""Generated parts of pages, and generated files."""

from __future__ import annotations

import re
import sys
from pathlib import Path

END = "<!-- end -->"


def replaced(text: str, begin: str, generated: str) -> str:
    """Return a page's text with a new generated part.

    Raises:
        ValueError: the text does not have exactly one place for it.
    """
    pattern = re.compile(f"{re.escape(begin)}.*?{END}", re.DOTALL)
    text, count = pattern.subn(lambda _: f"{begin}\n\n{generated}\n\n{END}", text)
    if count != 1:
        raise ValueError(f"the page must contain {begin!r} and {END!r} once, not {count} times")
    return text


def write(path: Path, text: str) -> None:
    """Write a generated file; with ``--check`` only fail if it is out of date."""
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path.name} is out of date: run python {sys.argv[0]}")
