"""Implements `podrace logs` and `podrace top`, which show what pods do now.

podrace/cli/pods/
  log_files.py   finds the logs of an embedded mesh
  logs.py        the command `logs`
  top.py         the command `top`
"""
