"""Writes the generated pages of the documentation: the references of specification, simulators and configuration.

    python docs/tools/reference.py            # writes them (`make reference`)
    python docs/tools/reference.py --check    # exits with 1 if one of them is not what would be written
"""

import argparse
import sys
from pathlib import Path

import configuration_page
import simulators_page
import specification_page

DOCS = Path(__file__).parents[1]
PAGES = {
    "configuration.md": configuration_page.page,
    "simulators.md": simulators_page.page,
    "specification.md": specification_page.page,
}


def main() -> int:
    """Writes the pages, or compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a page is not up to date")
    arguments = parser.parse_args()
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.is_file() or path.read_text() != text:
            stale.append(name)
            if not arguments.check:
                path.write_text(text)
    if arguments.check and stale:
        print(f"not up to date: {', '.join(stale)}; run `make reference`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
