"""The module by which Spark finds format ``dafka``.

At the first use of a Python source Spark imports every top-level module called ``pyspark_*`` and
registers its ``DefaultSource`` (SPARK-45917).  An exception here would break every other Python
source of the session, so a broken installation only warns.
"""

from __future__ import annotations

import warnings

try:
    from dafka_spark.datasource import DafkaDataSource as DefaultSource
except ImportError as error:
    warnings.warn(f"format 'dafka' is not available: {error}", RuntimeWarning, stacklevel=2)
else:
    __all__ = ["DefaultSource"]
