"""Bytecode in ``pyspark.zip``: processes that import it compile nothing."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from dafka_spark.pyspark_bytecode import add_bytecode

IMPORT = """\
import sys
compiled = []
sys.addaudithook(lambda name, given: compiled.append(name) if name == "compile" else None)
import package.module
print(package.module.place, bool(compiled))
"""
MODULE = "place = (lambda: None).__code__.co_filename"


def imported(archive: Path) -> tuple[str, bool]:
    """Return the file in a module's tracebacks, and whether anything was compiled."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT],
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    place, compiled = done.stdout.split()
    return place, compiled == "True"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "pyspark.zip"
    with ZipFile(path, "w") as zipped:
        zipped.writestr("package/__init__.py", "")
        zipped.writestr("package/module.py", MODULE)
        zipped.writestr("package/tests/test_it.py", "")
    return path


def test_nothing_is_compiled_again(archive: Path) -> None:
    place = str(archive / "package" / "module.py")
    assert imported(archive) == (place, True)
    assert add_bytecode(archive) == 2
    assert imported(archive) == (place, False)
    assert add_bytecode(archive) == 0
    assert [each.name for each in archive.parent.iterdir()] == [archive.name]


def test_another_python_compiles_the_sources(archive: Path) -> None:
    add_bytecode(archive)
    other = archive.parent / "other.zip"
    with ZipFile(archive) as zipped, ZipFile(other, "w") as written:
        for name in zipped.namelist():
            data = zipped.read(name)
            magic = b"\0\0\r\n" if name.endswith(".pyc") else data[:4]
            written.writestr(name, magic + data[4:])
    assert imported(other) == (str(other / "package" / "module.py"), True)


def test_an_archive_that_cannot_be_replaced_stays(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match=r"pyspark\.zip"):
        add_bytecode(tmp_path / "none" / "pyspark.zip")
    assert [*(tmp_path / "none").iterdir()] == []
