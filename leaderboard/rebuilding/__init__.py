"""Rebuilds the database of the leaderboard from the checkpoint store, if it was lost and has no backup.

leaderboard/rebuilding/
  derivation.py which records follow from manifests, and what is lost; pure
  rebuild.py    reads the store, and records what is derived
  known.py      lists what the leaderboard knows, for an orchestrator that lost its database
"""
