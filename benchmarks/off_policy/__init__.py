"""An off-policy agent in one process, with its replay memory, for benchmarks of checkpoints."""
