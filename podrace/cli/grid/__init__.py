"""Runs variants of a specification as tournaments and compares their results (`podrace grid`).

A grid has one or more axes. Each combination of their values is a cell, and each cell is a tournament.

podrace/cli/grid/
  command.py       the command and its output
  axes.py          parses axes and builds the specification of every cell (pure)
  run.py           runs the cells and resumes earlier runs; screen.py shows the progress
  results.py       results of the cells, and the result files
  statistics.py    bootstrap intervals, and mean curves over seeds (pure)
  plots.py         the plot
"""
