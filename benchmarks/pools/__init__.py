"""Provides the parts of `scale.py`: real services, simulated pods, and the learning curves that these follow."""
