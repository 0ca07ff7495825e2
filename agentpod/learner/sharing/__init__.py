"""Brings what other agents have learned to the agent in training: steps (`experience.shared`) and parameters."""
