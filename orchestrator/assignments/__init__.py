"""Assignments: acquired, renewed and completed by pods under leases."""
