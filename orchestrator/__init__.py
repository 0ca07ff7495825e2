"""The orchestrator: stores tournaments, leases agents to pods, and decides how many pods each tournament gets."""
