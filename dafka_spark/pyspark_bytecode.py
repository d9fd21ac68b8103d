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


def add_bytecode(archive: Path) -> int:
    """Add the bytecode of all modules to an archive; return the number of files added.

    The archive is replaced at once. Pythons of other versions still compile its sources.

    Raises:
        OSError: it cannot be read or replaced.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        sources, new = Path(directory, "sources"), Path(directory, archive.name)
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
            made = {each.relative_to(sources).as_posix() for each in sources.rglob("*.pyc")}
            missing = sorted(made.difference(zipped.namelist()))
            for name in missing:
                zipped.write(sources / name, name)
        move((new, archive))
    return len(missing)


if __name__ == "__main__":
    found = Path(_find_spark_home(), "python", "lib", "pyspark.zip")  # on its workers' path
    sys.stdout.write(f"added bytecode of {add_bytecode(found)} modules to {found}\n")
