"""Describes what a specification may name and what a server does, as messages of podrace.discovery.v1."""
