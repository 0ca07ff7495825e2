"""Compares policies by the returns of their evaluation episodes. Pure functions, used by pods and the leaderboard."""
