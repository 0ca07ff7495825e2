"""Assignments: pods acquire, renew and complete them under leases."""
