"""Turns errors of a Docker Engine into one line with a remedy. Pure functions."""

FULL = ("no space left on device", "disk quota exceeded", "cannot allocate memory", "resource temporarily unavailable")
"""Texts of the system's errors."""


def one_line(error: BaseException) -> str:
    """Returns the text of an error of the engine."""
    explanation = getattr(error, "explanation", None) or error
    return " ".join(str(explanation).split())


def remedy(error: BaseException) -> str:
    """Returns what to do about an error, to append to it; empty if that is not known."""
    if "Permission denied" in str(error) or "PermissionError" in str(error):
        return (
            "; this user may not use its socket: run as a member of the socket's group (compose: PODRACE_DOCKER_GROUP)"
        )
    if "No such file" in str(error) or "FileNotFound" in str(error):
        return "; is it running, and is its socket mounted here (or DOCKER_HOST set)?"
    return ""


def is_full(error: BaseException) -> bool:
    """Returns whether the machine of the engine lacks disk, memory or processes, which may pass."""
    text = str(error).lower()
    return any(each in text for each in FULL)


def missing_image(configured: str, named: str) -> str:
    """Returns the message if the engine lacks the image that a specification names, or else the configured one."""
    if named:
        return f"pod.image = {named!r}: does not exist on the engine, and is never pulled: build or pull it there"
    return f"image {configured!r} does not exist on the engine: build or pull it, or set docker.image"
