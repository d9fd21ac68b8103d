"""Keys of a cluster: their files, and the permissions that they give."""
