"""Trains one agent at a time: the worker collects, the learner updates, the evaluator scores."""
