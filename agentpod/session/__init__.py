"""The session of a pod: its roles opened together, and the calls to them."""
