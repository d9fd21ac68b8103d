"""What CONTRIBUTING.md promises of the layout: who looks for a test, or a limit, finds it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
