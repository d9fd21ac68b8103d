"""What CONTRIBUTING.md promises of the layout: who looks for a test, or a limit, finds it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("dafka_core", "dafka_spark")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(*folders: str) -> Iterator[Path]:
    return (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def functions(path: Path) -> list[Function]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def does_something(function: Function) -> bool:
    """Whether there is more to it than a docstring, as in a ``Protocol``."""
    return len(function.body) > 1 or not isinstance(function.body[0], ast.Expr)


def test_a_module_has_its_test_file_under_its_name() -> None:
    tests = [path.stem for path in modules("tests")]
    missing = [
        str(path.relative_to(ROOT))
        for path in modules(*PACKAGES)
        if not path.stem.startswith("_")
        and any(map(does_something, functions(path)))
        and not any(name == f"test_{path.stem}" for name in tests)
    ]
    assert missing == []


@pytest.mark.parametrize("folder", [*PACKAGES, "jobs", "benchmarks", "scripts", "tests"])
def test_files_and_functions_are_short(folder: str) -> None:
    too_long = []
    for path in modules(folder):
        where = path.relative_to(ROOT)
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MAX_FILE_LINES:
            too_long.append(f"{where}: {count} lines")
        for function in functions(path):
            count = (function.end_lineno or function.lineno) - function.lineno + 1
            if count > MAX_FUNCTION_LINES:
                too_long.append(f"{where}: {function.name}: {count} lines")
    assert too_long == []


@pytest.mark.parametrize(
    ("page", "least", "is_without"),
    [
        ("situations", 100, lambda row: False),
        ("features", 50, lambda row: row[-2][:3] == "no:"),
        # The others are by one test, which has a test of its own for the page.
        ("attacks", 25, lambda row: row[-1].strip() in ("fails", "with keys")),
    ],
)
def test_each_row_names_a_test_that_is_there(
    page: str, least: int, is_without: Callable[[list[str]], bool]
) -> None:
    lines = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8").splitlines()
    rows = [line[2:].removesuffix("|").split(" | ") for line in lines if line.startswith("| ")]
    rows = [row for row in rows if row[-1].strip() not in ("tried by", "shown by")]
    assert len(rows) >= least
    wrong = []
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[-1])
        for path, test in named:
            file = ROOT / path
            if not file.exists() or f"def {test}(" not in file.read_text(encoding="utf-8"):
                wrong.append(f"{path}::{test}")
        if not (named or is_without(row)):
            wrong.append(" | ".join(row))
    assert wrong == []
