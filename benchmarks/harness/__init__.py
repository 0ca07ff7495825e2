"""Holds what several benchmarks use: pods, policy files, lower bounds, and repeated tournaments."""
