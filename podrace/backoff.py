"""Computes how long to wait after repeated failures. Pure."""

_MOST_DOUBLINGS = 30
"""A larger power of two overflows long after every limit has been reached."""


def exponential(failures: int, first_seconds: float, longest_seconds: float, *, forgiven: int = 0) -> float:
    """Seconds to wait after this many failures in a row: doubled after each, up to a limit.

    Args:
        failures: Failures in a row.
        first_seconds: Wait after the first failure that is not forgiven.
        longest_seconds: Limit.
        forgiven: Failures in a row that cause no wait.
    """
    doublings = failures - forgiven - 1
    if doublings < 0:
        return 0.0
    return min(longest_seconds, first_seconds * 2.0 ** min(doublings, _MOST_DOUBLINGS))
