"""Running nodes as operators see them: metrics, health, diagnosis."""
