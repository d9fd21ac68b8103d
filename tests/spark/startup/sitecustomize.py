"""Removes Spark's zip of PySpark from the path of each Python that Spark starts.

The zip has no compiled modules, so each worker would compile them for most of a second.
"""

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith("/pyspark.zip")]
