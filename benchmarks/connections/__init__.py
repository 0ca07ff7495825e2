"""Measures what broken connections between services cost, with a proxy that injects faults."""
