"""A year of flights through Dafka and Spark, with a kill and a restart in between."""
