"""Brings the experience of other agents to the agent in training (`experience.shared`)."""
