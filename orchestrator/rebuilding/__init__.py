"""Rebuilds the database of the orchestrator, if it was lost without a backup, from the leaderboard and running pods.

orchestrator/rebuilding/
  derivation.py which records follow from what the leaderboard knows; pure
  rebuild.py    asks the leaderboard, and records it before the service answers calls
  revival.py    continues a rebuilt tournament when a pod proves that it was running
"""
