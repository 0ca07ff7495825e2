"""`python -m podrace.cli` is `podrace`."""

import sys

from podrace.cli import main

sys.exit(main())
