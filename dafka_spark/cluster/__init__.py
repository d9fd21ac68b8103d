"""The cluster as source and sink see it: its stores, connections and timeouts."""
