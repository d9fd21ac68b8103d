"""What mkdocs is told of the pages outside of docs/, so that links in pages are those of GitHub.

The site has what is in docs/ and what is beside it in one folder: README.md, and each file that a
page links to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
OUTWARDS = re.compile(r"\]\(\.\./([^)#\s]+)")
FOLDERS = re.compile(r"\]\((?:\.\./|docs/)(?=[^)\s])")
ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]*`")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages of the root, and the files outside that pages link to."""
    outside = {path.name for path in ROOT.glob("*.md")}
    for path in Path(config.docs_dir).glob("*.md"):
        outside.update(OUTWARDS.findall(path.read_text(encoding="utf-8")))
    for name in sorted(outside):
        if (ROOT / name).is_file():
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page's text, with links as they are in the site's one folder.

    GitHub wants a bar in code in a row of a table escaped; mkdocs would show the backslash.
    """
    text = ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)
    return FOLDERS.sub("](", text)
