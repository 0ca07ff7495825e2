"""Runs the services of a pod that a learner calls: worker and evaluator."""
