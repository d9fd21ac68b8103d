"""Speed and memory, side by side with a twin measured in the same run.

``python -m benchmarks`` prints a JSON line per figure, with ``ratio`` larger = better, and a
table for people.
"""
