"""The console: a cluster's state, gathered in the background, for browsers and a terminal."""
