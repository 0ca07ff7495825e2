"""The life of a tournament: created, changed, completed, its champion selected."""
