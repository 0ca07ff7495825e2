"""The orchestrator's decisions as pure functions: no clock, no I/O, no database."""
