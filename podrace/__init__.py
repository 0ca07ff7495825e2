"""Provides the code that all services share. Imports none of the services."""

import os

__version__ = "0.1.0"

# gRPC's C core would print its own lines next to each error line. Set the variable to debug it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
