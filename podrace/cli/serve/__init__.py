"""The command `podrace serve`: serves the actions of a trained policy."""
