"""The site that ``make docs`` builds: its links, its search, and equality with GitHub's pages."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from scripts.browser import Browser

CHROMIUM = shutil.which("chromium") or ""
ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
COUNTED = ("li", "table", "td", "pre", "code", "h2", "h3", "img", "em", "strong", "blockquote")
LOADED = {"img": "src", "link": "href", "script": "src", "iframe": "src"}


class Shown(HTMLParser):
    """The parts of a page's HTML: text tags, ids of headings, code, and loaded files."""

    def __init__(self, html: str, *, inside: str | None = None) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.headings: list[str] = []
        self.code: list[str] = []
        self.loaded: list[str] = []
        self._inside, self._is_inside, self._is_code = inside, inside is None, False
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attributes}
        self.loaded += [of[LOADED[tag]]] if LOADED.get(tag) in of else []
        self._is_inside |= tag == self._inside
        if self._is_inside:
            self.tags[tag] += 1
            if re.fullmatch("h[1-6]", tag):
                self.headings.append(of.get("id", ""))
            if tag == "code":
                self._is_code = True
                self.code.append("")

    def handle_data(self, text: str) -> None:
        if self._is_code:
            self.code[-1] += text

    def handle_endtag(self, tag: str) -> None:
        if tag == "code":
            self._is_code = False
        if tag == self._inside:
            self._is_inside = False


def built(page: Path, site: Path) -> Shown:
    """A page of the site."""
    name = "index" if page.name == "README.md" else page.stem
    return Shown((site / f"{name}.html").read_text(encoding="utf-8"), inside="article")


def differences(page: Path, here: Shown) -> list[tuple[object, ...]]:
    """Return the differences between a page of the site and GitHub's."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    there = Shown(MarkdownIt("commonmark").enable("table").render(text))
    counts = [(tag, here.tags[tag], there.tags[tag]) for tag in COUNTED]
    pairs = zip(here.code, there.code, strict=False)
    code = [pair for pair in pairs if pair[0].split() != pair[1].split()]
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    slugs = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings]
    ids = [re.sub(r"_\d+$", "", each) for each in here.headings]
    wrong = [pair for pair in zip(ids, slugs, strict=True) if pair[0] != pair[1]]
    return [*(each for each in counts if each[1] != each[2]), *code[:1], *wrong]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site."""
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return directory


def test_the_site_is_whole_shows_what_github_shows_and_needs_no_network(site: Path) -> None:
    for page in PAGES:
        shown = built(page, site)
        assert differences(page, shown) == [], page.name
        assert len(shown.loaded) > 3, page.name
        assert [each for each in shown.loaded if re.match(r"(\w+:)?//", each)] == [], page.name


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
def test_the_search_works_in_files(site: Path) -> None:
    browser = Browser(CHROMIUM)
    try:
        browser.call("Page.navigate", url=f"{(site / 'index.html').as_uri()}?q=retention")
        found = "document.querySelector('.md-search-result__item a')?.getAttribute('href')"
        assert "retention" in browser.wait(found, "a result of the search")
    finally:
        browser.close()
