"""Draws learning curves from the snapshots of a tournament (`podrace curve`).

podrace/cli/curve/
  command.py  the command
  output.py   the points as CSV and JSON (pure)
  plots.py    the plot
"""
