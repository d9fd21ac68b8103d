"""Proof that a sink has what a query has written."""
