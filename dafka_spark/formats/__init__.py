"""Formats of values: how a typed column is made of records' values, and values of a column."""
