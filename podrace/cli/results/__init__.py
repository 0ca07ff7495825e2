"""What a finished tournament leaves behind: reports, plots and the scores of checkpoints."""
