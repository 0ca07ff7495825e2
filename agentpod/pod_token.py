"""Finds the token that identifies this pod to the orchestrator and the leaderboard."""

from pathlib import Path

from agentpod.config import PodConfig
from podrace.access.mesh_key import MeshKey
from podrace.access.private_file import read_private_file
from podrace.access.sending import is_loopback
from podrace.access.token_file import MESH_KEY, token_path
from podrace.access.tokens import OwnPodToken, RenewedToken
from podrace.errors import FailedPrecondition


def token_of(config: PodConfig) -> RenewedToken | OwnPodToken:
    """Returns the source of the token of a pod, which is empty where no token is needed.

    Raises:
        FailedPrecondition: The file of the token or of the key cannot be used.
    """
    if config.token or config.orchestrator.startswith("unix:"):
        return RenewedToken(config.token)
    if config.token_file:
        return RenewedToken(_read(config.token_file))
    key = token_path().with_name(MESH_KEY)
    if config.standing and is_loopback(config.orchestrator) and key.exists():
        return OwnPodToken(MeshKey.load_or_make(key), config.pod_id)
    return RenewedToken("")


def _read(path: str) -> str:
    try:
        return read_private_file(Path(path)).decode(errors="replace").strip()
    except FileNotFoundError:
        raise FailedPrecondition(f"token_file = {path!r}: no such file; make a token with `podrace token`") from None
