"""The console's pages in a real Chromium, where one is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.console.server import Console
from scripts.browser import Browser
from scripts.console_pictures import busy_cluster, look_at_login, look_at_many, look_further

CHROMIUM = shutil.which("chromium") or ""

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="Chromium is not installed (Debian: apt-get install chromium)"
)


@pytest.fixture
def browser() -> Iterator[Browser]:
    made = Browser(CHROMIUM)
    yield made
    made.close()
    assert not made.errors


def test_pages_show_a_cluster_by_mouse_and_keyboard_on_a_screen_and_a_phone(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        busy_cluster() as cluster,
        Console({"tower": cluster.tower}, listen="127.0.0.1:0", interval_ms=500) as console,
    ):
        look_further(browser, console.url, tmp_path)


def test_ten_thousand_partitions_are_shown_by_few_rows(browser: Browser, tmp_path: Path) -> None:
    look_at_many(browser, tmp_path)


def test_who_may_look_logs_in_by_form_and_by_link(browser: Browser, tmp_path: Path) -> None:
    look_at_login(browser, tmp_path)
