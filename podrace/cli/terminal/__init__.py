"""Defines options, output, number formats and interrupts for all commands."""
