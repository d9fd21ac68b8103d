"""The data model: records and their values, names, times, epochs, and log entries."""
