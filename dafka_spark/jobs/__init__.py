"""Programs for Spark: each module is one, which ``dafka job`` lists and runs."""
