"""Writing: batch and streaming queries."""
