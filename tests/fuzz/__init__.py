"""Random bytes for every parser of outside input: by hypothesis and by coverage."""
