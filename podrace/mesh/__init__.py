"""The embedded mesh: starts and stops the services of one home folder."""

from podrace.mesh.session import open_mesh

__all__ = ["open_mesh"]
