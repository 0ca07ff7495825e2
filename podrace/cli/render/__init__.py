"""Implements `podrace render`: an animation of one episode of a champion or another candidate."""
