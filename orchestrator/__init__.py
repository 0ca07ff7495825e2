"""The orchestrator: who trains what. Holds tournaments, leases agents to pods, decides how many pods there are."""
