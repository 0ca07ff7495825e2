"""Checks that a dashboard answers, for the health check of a container: `python -m podrace.dashboard.live URL [CA]`."""

import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

LIVE_PATH = "/live"
"""Answered to everyone with an empty response, whatever the host and without a token."""
SECONDS = 4.0


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if the dashboard answers, else 1.

    Args:
        arguments: The URL of the dashboard, and the file of the authority that has signed its certificate.
    """
    url, *authority = arguments
    context = ssl.create_default_context(cafile=authority[0]) if authority else None
    try:
        with urllib.request.urlopen(f"{url}{LIVE_PATH}", timeout=SECONDS, context=context) as response:
            return 0 if response.status == 204 else 1
    except (urllib.error.URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
