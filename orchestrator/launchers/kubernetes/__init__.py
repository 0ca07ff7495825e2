"""Runs pods as Jobs of a Kubernetes cluster."""
