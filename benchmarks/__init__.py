"""Speed and memory, side by side with a reference measured in the same run.

``python -m benchmarks`` prints a JSON line per figure, with ``ratio`` larger = better, and a
table for people.  Each subject has a module with ``run(bench)``, which yields its figures.
"""
