"""Ranks candidates. Pure: no clock, no store, no database."""
