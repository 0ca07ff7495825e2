"""Reads the zip file that `model.save` of Stable-Baselines3 2.x wrote; nothing in it is unpickled.

    model = read_model(path)
    model.tensors["action_net.weight"], model.setting("gamma", 0.99)

The file has `policy.pth`, the parameters of the policy as PyTorch saves them, which are read as tensors only
(`weights_only`), and `data`, the settings as JSON. Settings that are objects are pickled in it. Of those only the
readable copy of their attributes is used.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from podrace.digests import digest
from podrace.errors import InvalidArgument, NotFound

POLICY, DATA, VERSION = "policy.pth", "data", "_stable_baselines3_version"
MOST_BYTES: Mapping[str, int] = {POLICY: 2**30, DATA: 2**26, VERSION: 100}
"""Largest size of each part that is read."""


@dataclass(frozen=True)
class SavedModel:
    """What a file says about a policy."""

    digest: str
    """SHA-256 of the file."""
    version: str
    """Version of Stable-Baselines3."""
    tensors: Mapping[str, Tensor]
    """Parameters by their names in PyTorch, float32."""
    settings: Mapping[str, Any]
    """Arguments and state of the algorithm."""

    def setting(self, name: str, default: Any = None) -> Any:
        """Returns a setting that is a number, a text, a list or None; the default for an object."""
        found = self.settings.get(name, default)
        return default if isinstance(found, dict) else found

    def policy_setting(self, name: str) -> str:
        """Returns a keyword argument of the policy as text; empty if it is not set."""
        found = self.settings.get("policy_kwargs")
        return str(found.get(name, "")) if isinstance(found, dict) else ""


def read_model(path: Path) -> SavedModel:
    """Reads a file.

    Raises:
        NotFound: There is no such file.
        InvalidArgument: It is not a model of Stable-Baselines3, is damaged, or a part is too large.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file") from None
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}") from None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {name: _part(archive, name, path) for name in MOST_BYTES}
        # Tensors only: other objects are refused instead of being constructed.
        loaded = torch.load(io.BytesIO(parts[POLICY]), map_location="cpu", weights_only=True)
        settings = json.loads(parts[DATA])
    except KeyError as error:
        raise InvalidArgument(f"{path}: is not a model of Stable-Baselines3: {error.args[0]}") from None
    except (
        zipfile.BadZipFile,
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        EOFError,
        NotImplementedError,
    ) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidArgument(f"{path}: is damaged, or not a model of Stable-Baselines3: {reason}") from None
    if not isinstance(settings, dict) or not isinstance(loaded, dict):
        raise InvalidArgument(f"{path}: is not a model of Stable-Baselines3")
    tensors = {str(name): value.detach().float() for name, value in loaded.items() if isinstance(value, Tensor)}
    return SavedModel(digest(content), parts[VERSION].decode(errors="replace").strip()[:20], tensors, settings)


def _part(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    size = archive.getinfo(name).file_size
    if size > MOST_BYTES[name]:
        raise InvalidArgument(f"{path}: its part {name} has {size} bytes, at most {MOST_BYTES[name]} are read")
    return archive.read(name)
