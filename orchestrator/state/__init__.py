"""The orchestrator's state: the database, what is cached of it, and what is kept in memory only."""
