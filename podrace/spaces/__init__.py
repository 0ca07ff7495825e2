"""Describes composite observations, and flattens them into the one row of numbers that simulators return."""
