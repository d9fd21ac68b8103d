"""Reading: batch and streaming queries."""
