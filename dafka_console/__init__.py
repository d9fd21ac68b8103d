"""A cluster to look at: gathered once in the background, served to browsers and to a terminal."""
