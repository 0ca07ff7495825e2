"""Plays the orchestrator, the leaderboard and the checkpoint store for a pod that is examined."""
