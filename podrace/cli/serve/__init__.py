"""The command `podrace serve`: acts with a trained policy for others."""
