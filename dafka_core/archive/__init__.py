"""The archive: records that stores give up, or may, as Parquet files that anybody can read."""
