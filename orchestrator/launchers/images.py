"""Decides whether pods of a specification may run an image that it names. Pure.

An image is code with the rights of a pod: its token, and its access to the store. So only images that the operator
lists are allowed, besides the one that pods have anyway.
"""

import re
from collections.abc import Sequence

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d{1,5})?"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII
)
"""As container engines define the reference of an image."""
EXPECTED = "expected [host/]name[:tag][@sha256:digest]"


def image_problem(image: str, launcher: str, allowed: Sequence[str], configured: str = "") -> str:
    """Returns why pods may not run an image, without its key; empty if they may, or if none is named.

    Args:
        image: As in the specification; empty: pods run the configured image.
        launcher: Name of the launcher.
        allowed: Images that the operator allows; a final `*` stands for every ending.
        configured: The image that pods have without a specification that names one; empty: unknown.
    """
    if not image:
        return ""
    if not runs_images(launcher):
        return (
            f"the launcher {launcher!r} starts no containers; leave it out, and install what the specification needs in"
            " the environment of the pods"
        )
    if not _REFERENCE.fullmatch(image):
        return EXPECTED
    if image == configured or any(_matches(image, entry) for entry in allowed):
        return ""
    return f"this image is not allowed here; the setting of its operator is launchers.{launcher}.images"


def runs_images(launcher: str) -> bool:
    """Whether the pods of a launcher are containers that it starts."""
    return launcher in ("docker", "kubernetes")


def pattern_problem(entry: str) -> str:
    """Returns what is wrong with an entry of the operator's list; empty if nothing is."""
    if _REFERENCE.fullmatch(entry) or re.fullmatch(r"[\w./:@-]+\*", entry, re.ASCII):
        return ""
    return f"{EXPECTED}, or the beginning of one followed by *"


def _matches(image: str, entry: str) -> bool:
    return image.startswith(entry[:-1]) if entry.endswith("*") else image == entry
