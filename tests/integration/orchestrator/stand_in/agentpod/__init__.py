"""Stands in for the real package where a test puts this folder first on the path."""
