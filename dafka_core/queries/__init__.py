"""What is known of Spark's streaming queries without Spark: reports, lag, and checkpoints."""
