"""Takes the pictures of docs/dashboard.md of a running dashboard, in headless Chromium.

    podrace dashboard --listen 127.0.0.1:7780
    python docs/tools/dashboard_pictures.py 'http://127.0.0.1:7780/?token=...' TOURNAMENT

Needs playwright and Chromium, as `make test-browser` installs them.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parents[1] / "images"
PICTURES = (
    ("dashboard-curves", "board", "light", ".u-over"),
    ("dashboard-lineage", "lineage", "light", "ol.path"),
    ("dashboard-hyperparameters", "hyperparameters", "dark", ".parallel canvas"),
)
"""Name of the picture, tab, theme, and what must be there."""
SIZE = {"width": 1100, "height": 760}


def main(url: str, tournament: str) -> None:
    """Writes the pictures."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page: Any = browser.new_page(viewport=SIZE, locale="en-GB", timezone_id="UTC")
        page.goto(url)
        for name, tab, theme, ready in PICTURES:
            page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
            page.goto(f"{url.partition('/?')[0]}/#/t/{tournament}/{tab}")
            page.reload()
            page.wait_for_selector(ready)
            page.wait_for_timeout(2000)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
