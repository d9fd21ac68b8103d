"""Pictures of the console, drawn by Chromium if it is installed."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

# Seconds after which the charts of the console have lines.
SETTLE_S = 2.5

NONE = "none"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

MISSING = (
    "there is no picture of the console: install Chromium (Debian: apt-get install chromium), or "
    "name one with --browser; {timeline} shows the run"
)

# Pages of the console, and an element that marks a loaded page.
MAP = ("", ".map .node.store")
QUERIES = ("queries", ".query")

Page = tuple[str, str]


def browser_named(text: str) -> str:
    """Parse the path of a Chromium, or ``none``."""
    if text != NONE and shutil.which(text) is None:
        raise argparse.ArgumentTypeError(
            f"there is no program {text!r}; name a Chromium, or {NONE} for no pictures of the "
            "console"
        )
    return text


def find_browser(named: str | None) -> str | None:
    """Return the path of the named Chromium, or of an installed one."""
    names = PROGRAMS if named is None else (named,)
    return next(filter(None, map(shutil.which, names)), None)


def draw_console(program: str, url: str, pictures: Mapping[Path, Page]) -> None:
    """Draw the console's current pages as PNG.

    Raises:
        OSError, RuntimeError, AssertionError: the browser does not start, or a page does not come.
    """
    from scripts.browser import Browser  # the repository's own

    browser = Browser(program)
    try:
        browser.size(1280, 800, dark=True)
        for path, (page, there) in pictures.items():
            browser.call("Page.navigate", url="about:blank")
            browser.call("Page.navigate", url=f"{url}#/{page}")
            browser.wait(f"document.querySelector('{there}') !== null", f"page {page!r}")
            time.sleep(SETTLE_S)
            browser.picture(path)
    finally:
        browser.close()
