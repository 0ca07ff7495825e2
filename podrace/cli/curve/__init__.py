"""Draws learning curves from the snapshots of a tournament (`podrace curve`).

podrace/cli/curve/
  command.py       the command and its output
  evaluations.py   has pods evaluate snapshots that have not been evaluated yet
  points.py        selects the snapshots of a curve and computes its points (pure)
  plots.py         the plot
"""
