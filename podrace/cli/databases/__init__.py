"""Implements the commands about databases of services."""
