"""Compile PySpark for Spark's Python processes: ``python -m dafka_spark.pyspark_bytecode``.

They import PySpark from the archive ``pyspark.zip`` of Spark, which has sources only. So each of
them compiles what it imports, for half a second, and a query starts several.
"""

from __future__ import annotations

import compileall
import re
import shutil
import sys
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile

from pyspark.find_spark_home import _find_spark_home

from dafka_core.system.files import move

_TESTS: Final = re.compile("/tests/")


def archive_of(spark_home: str) -> Path:
    """Return the archive that Spark adds to its workers' ``PYTHONPATH``."""
    return Path(spark_home, "python", "lib", "pyspark.zip")


def add_bytecode(archive: Path) -> int:
    """Add the bytecode of all modules to an archive; return the number of files added.

    The archive is replaced at once. Pythons of other versions still compile its sources.

    Raises:
        OSError: it cannot be read or replaced.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent) as made:
        sources, new = Path(made, "sources"), Path(made, archive.name)
        with ZipFile(archive) as old:
            old.extractall(sources)
        compileall.compile_dir(
            sources,
            quiet=1,
            legacy=True,  # beside the sources, where zipimport expects it
            rx=_TESTS,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
            stripdir=sources,
            prependdir=archive,
        )
        shutil.copy(archive, new)
        with ZipFile(new, "a", ZIP_DEFLATED) as zipped:
            missing = [
                (path, name)
                for path in sorted(sources.rglob("*.pyc"))
                if (name := path.relative_to(sources).as_posix()) not in zipped.NameToInfo
            ]
            for path, name in missing:
                zipped.write(path, name)
        move((new, archive))
    return len(missing)


if __name__ == "__main__":
    found = archive_of(_find_spark_home())
    sys.stdout.write(f"added bytecode of {add_bytecode(found)} modules to {found}\n")
