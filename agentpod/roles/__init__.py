"""The services of a pod that the leader calls: worker and evaluator."""
