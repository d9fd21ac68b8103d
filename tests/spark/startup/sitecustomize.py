"""Read by each Python whose path has this directory: it imports PySpark as it is installed.

Spark begins the path of its workers with a zip of the same modules, of which no compiled ones are
kept: each worker would compile them for most of a second.
"""

from __future__ import annotations

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith("/pyspark.zip")]
