"""Describes trials of planes, and runs those of pods that a launcher starts."""
