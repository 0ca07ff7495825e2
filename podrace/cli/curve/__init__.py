"""`podrace curve`: learning curves from the policies that a tournament kept at fixed times.

podrace/cli/curve/
  command.py       what a person types and sees
  evaluations.py   has pods evaluate the snapshots that nobody has evaluated
  points.py        which snapshots make a curve, and its numbers (PURE)
  plots.py         the picture
"""
