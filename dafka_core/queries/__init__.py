"""Spark's streaming queries, without Spark: progress reports, lag, and checkpoints."""
