"""Writes the results of a finished tournament: reports, plots and scores of checkpoints."""
