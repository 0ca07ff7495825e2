"""The state of the orchestrator: the database, its cache, and the state that is kept in memory only."""
