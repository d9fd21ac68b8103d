"""Octets of any kind for all that reads them from outside: by hypothesis and by coverage."""
