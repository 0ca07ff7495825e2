"""The contracts of podrace as Python modules (`podrace.orchestrator.v1` and so on), protos and a descriptor set.

The modules lie in a folder of this package, which podrace_contracts.pth adds to the end of the module search path. The
application podrace has the same modules. Where both are installed, its modules are used, and either can be removed
without harm to the other. If the file .pth has no effect, for instance after `pip install --target`, importing this
package adds the folder.
"""

import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
__version__ = (_FOLDER / "VERSION").read_text().strip()

if str(_FOLDER) not in sys.path:
    sys.path.append(str(_FOLDER))


def descriptor_set() -> bytes:
    """Returns a serialized google.protobuf.FileDescriptorSet of all contracts, with comments."""
    return (_FOLDER / "contracts.binpb").read_bytes()


def protos() -> Path:
    """Returns the folder of the .proto files, to be used as an import path."""
    return _FOLDER / "protos"
