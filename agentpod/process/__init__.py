"""Starts the processes of a pod: wiring, the fork server, and retraining."""
