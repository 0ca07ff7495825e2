"""Brings policies to games of two players: those that an agent trains against, and those that it is rated by."""
