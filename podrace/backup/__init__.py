"""Keeps copies of a service's database, and archives of tournaments, in the checkpoint store. Works without torch."""
