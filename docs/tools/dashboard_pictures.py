"""Takes the pictures of docs/dashboard.md of a running dashboard, in headless Chromium.

    podrace dashboard --listen 127.0.0.1:7780
    python docs/tools/dashboard_pictures.py 'http://127.0.0.1:7780/?token=...' TOURNAMENT [PICTURE...]

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
    ("dashboard-logs", "logs", "light", "select[name=log]"),
)
"""Name of the picture, tab, theme, and what must be there."""
CHAMPION = "dashboard-champion"
"""Picture of the report `backtest`, made only where the specification has one."""
SIZE = {"width": 1100, "height": 760}


def main(url: str, tournament: str, *wanted: str) -> None:
    """Writes the named pictures, or all."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page: Any = browser.new_page(viewport=SIZE, locale="en-GB", timezone_id="UTC")
        page.goto(url)
        for name, tab, theme, ready in PICTURES:
            if wanted and name not in wanted:
                continue
            page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
            page.goto(f"{url.partition('/?')[0]}/#/t/{tournament}/{tab}")
            page.reload()
            page.wait_for_selector(ready)
            page.wait_for_timeout(2000)
            if tab == "logs":
                page.select_option("select[name=log]", index=1)
                page.wait_for_selector("pre.log:not(:empty)")
            page.screenshot(path=IMAGES / f"{name}.png")
        page.evaluate("localStorage.setItem('theme', 'light')")
        if not wanted or CHAMPION in wanted:
            take_champion(page, f"{url.partition('/?')[0]}/#/t/{tournament}/champion")
        browser.close()


def take_champion(page: Any, url: str) -> None:
    """Has the champion evaluated for the report `backtest`, and takes its picture."""
    page.goto(url)
    page.reload()
    page.wait_for_selector("text=Draw an episode")
    page.wait_for_timeout(2000)
    if not page.locator("select[name=report] option[value=backtest]").count():
        return
    page.select_option("select[name=report]", "backtest")
    page.click("text=Evaluate the champion")
    page.wait_for_selector("figure .u-over", timeout=600_000)
    page.wait_for_timeout(1000)
    page.evaluate("document.querySelector('main table').scrollIntoView()")
    page.screenshot(path=IMAGES / f"{CHAMPION}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
