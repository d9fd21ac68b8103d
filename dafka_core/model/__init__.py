"""What Dafka is about: records and their values, names, times, epochs, and log entries."""
