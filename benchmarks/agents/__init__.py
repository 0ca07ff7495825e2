"""How well and how fast single agents train: one question each."""
