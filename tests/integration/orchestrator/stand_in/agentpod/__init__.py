"""Replaces the real package in tests that put this folder first on the path."""
