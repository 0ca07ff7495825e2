"""Runs the services of a home folder as local processes (the embedded mesh)."""

from podrace.mesh.session import open_mesh

__all__ = ["open_mesh"]
