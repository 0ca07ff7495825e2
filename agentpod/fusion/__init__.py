"""Fusion: several learners train one agent and average their state in rounds."""
