"""Implements the strategies that keep a population as a row of seats, which agents take one after another."""
