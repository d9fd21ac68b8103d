"""The archive: records of stores as Parquet files for any program."""
