"""Adds files outside of docs/ to mkdocs' site, so that links are the same here and on GitHub.

The site has one folder, with docs/, the pages of the root, and each file that a page links to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "tests" / "situations.md"
OUTSIDE = re.compile(r"\]\(\.\./(?!docs/|tests/situations\.md)([^)#\s]+)")
FOLDERS = re.compile(r"\]\((?:\.\./)?(?:docs/|tests/(?=situations\.md))?(?=[^)\s])")
ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]*`")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of the root, the index of tests, and the files that pages link to."""
    outside = {path.name for path in ROOT.glob("*.md")}
    for path in (*Path(config.docs_dir).glob("*.md"), INDEX):
        outside.update(OUTSIDE.findall(path.read_text(encoding="utf-8")))
    for name in sorted(outside):
        if (ROOT / name).is_file():
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, INDEX.name, abs_src_path=str(INDEX)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page's text with links in the site's folder.

    GitHub needs a bar in a row's code escaped; mkdocs would show the backslash.
    """
    text = ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)
    return FOLDERS.sub("](", text)
