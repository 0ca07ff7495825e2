"""Runs the `podrace` command: `python -m podrace.cli`."""

import sys

from podrace.cli import main

sys.exit(main())
