"""The keys of a cluster: their files, and who is let in by them."""
