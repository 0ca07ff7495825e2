"""Implements `podrace prune`: deletes tournaments that have ended, and files in the home that none refers to.

podrace/cli/pruning/
  decisions.py   which tournaments and files are deleted, and why; pure
  command.py     the command
"""
