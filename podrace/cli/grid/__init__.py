"""`podrace grid`: one specification along several axes, every cell a tournament, compared at the end.

podrace/cli/grid/
  command.py       what a person types and sees at the end
  axes.py          from what is typed to the specification of every cell (PURE)
  run.py           runs the cells, goes on where an earlier command was ended; screen.py shows them meanwhile
  results.py       the outcome of each cell, and the files
  statistics.py    bootstrap intervals, and curves over seeds (PURE)
  plots.py         the picture
"""
