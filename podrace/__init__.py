"""What every service of the mesh shares; imports nothing of the services themselves."""

__version__ = "0.1.0"
