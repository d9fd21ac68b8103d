"""Several machines: hosts in network namespaces."""
