"""What is known of Spark's streaming queries without Spark: how far they are, and their lag."""
