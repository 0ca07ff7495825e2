"""Measures a policy server: `python -m benchmarks.serving`."""
