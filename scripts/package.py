"""Builds what a Spark cluster needs into ``dist/``: a wheel, and a zip for ``--py-files``.

Beside them it puts an SBOM, which lists what the package is made of.

The zip holds the pure Python packages only.  What they depend on (pyzmq, pyarrow, numpy, lmdb,
msgspec and xxhash) has native parts, which Python cannot import from a zip: executors
must have them.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from scripts import sbom

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PACKAGES = ("dafka_console", "dafka_core", "dafka_kafka", "dafka_spark", "pyspark_dafka")
ZIP = DIST / "dafka_spark.zip"
# The oldest time a zip can hold: the same sources give the same bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)

USAGE = """\
Built:
  {wheel}
  {zip}
  {sbom}, which lists what the package is made of

Submit a job, with pyzmq, pyarrow, numpy, lmdb, msgspec and xxhash installed where the
driver and the executors run:
  PYTHONPATH={zip} spark-submit --py-files {zip} JOB.py ...
PYTHONPATH is for Spark's own helpers on the driver, which --py-files does not reach.  Spark finds
format "dafka" by its name only where it is installed; with a zip a job says:
  from dafka_spark import DafkaDataSource
  spark.dataSource.register(DafkaDataSource)

Or install the wheel, with all it depends on, on the driver and the executors:
  pip install {wheel}
"""


def main() -> None:
    """Build everything, and print how to use it."""
    DIST.mkdir(exist_ok=True)
    wheel = build_wheel()
    build_zip()
    made = {"wheel": wheel, "zip": ZIP, "sbom": sbom.write(DIST)}
    print(USAGE.format(**{name: path.relative_to(ROOT) for name, path in made.items()}))


def build_wheel(directory: Path = DIST) -> Path:
    """The wheel, built by the backend of this environment, as the only one in a directory."""
    for old in directory.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(ROOT)]
    subprocess.run(command, check=True)
    [wheel] = directory.glob("*.whl")
    return wheel


def build_zip() -> None:
    """The packages' sources, and ``py.typed``, in an archive that Python imports from."""
    with zipfile.ZipFile(ZIP, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for path in sorted((ROOT / package).rglob("*")):
                if path.suffix == ".py" or path.name == "py.typed":
                    name = path.relative_to(ROOT).as_posix()
                    entry = zipfile.ZipInfo(name, EPOCH)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, path.read_bytes())


if __name__ == "__main__":
    main()
