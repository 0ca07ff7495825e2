"""Transfers tensors between the processes of a pod, over one of several planes. Requires torch."""
