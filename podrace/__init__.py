"""What every service of the mesh shares; imports nothing of the services themselves."""

import os

__version__ = "0.1.0"

# gRPC's C core would print lines of its own beside each error line; whoever debugs it sets this variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
