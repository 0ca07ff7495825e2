"""`python -m podrace.health ADDRESS`: whether a service says that it serves, by exit code; for container engines."""

import asyncio
import sys

from podrace import rpc
from podrace.errors import PodraceError

DEADLINE_SECONDS = 3.0


def main(arguments: list[str]) -> int:
    """Asks once, with a deadline."""
    if len(arguments) != 1:
        print("usage: python -m podrace.health ADDRESS", file=sys.stderr)
        return 2
    try:
        asyncio.run(rpc.wait_until_serving(arguments[0], deadline_seconds=DEADLINE_SECONDS))
    except PodraceError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
