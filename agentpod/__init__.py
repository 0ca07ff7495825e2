"""Trains one agent at a time: workers collect experience, learners update the policy, an evaluator scores it."""
