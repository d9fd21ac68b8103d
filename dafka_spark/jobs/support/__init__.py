"""What jobs share: their arguments, how they begin, and how they end."""
