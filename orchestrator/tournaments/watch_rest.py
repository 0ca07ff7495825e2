"""Decides how long a watcher of a tournament rests after a message. A pure function."""

REST_FACTOR = 9.0
"""Watchers rest this many times as long as they work, so that they leave most of the time to the calls of pods."""


def watch_rest(spent_seconds: float, built_seconds: float, watchers: int) -> float:
    """Returns the seconds until the next message.

    Args:
        spent_seconds: Time until the message was sent, in which other calls may have been answered.
        built_seconds: Time to build the message, in which nothing else was answered.
        watchers: Number of all watchers, which share the time of the service.
    """
    return REST_FACTOR * max(spent_seconds, built_seconds * watchers)
