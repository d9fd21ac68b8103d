"""Formats of values: each has a codec, which decodes values into a column and encodes a column."""
