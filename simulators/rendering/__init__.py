"""Draws one episode of a policy as an animation: `python -m simulators.rendering`, which `podrace render` runs."""
