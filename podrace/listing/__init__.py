"""Selects and orders the entries of lists by texts of a request, and checks labels."""
