"""Measures the first view of a large tournament in the dashboard: a scripted mesh, the gateway, and Chromium.

    python -m benchmarks.services.dashboard_view [--agents 500] [--points 1000000] [--rounds 5]

Each round starts a new gateway and opens the page of the tournament twice, without the cache of the browser: `reading`
while the gateway still reads the evaluations, and `read` when it has read all of them. A view is the time from the
navigation until the chart of all agents is drawn. The frames are counted while the mouse moves over the chart. Prints
one JSON object for each round, and the medians. Needs playwright and Chromium (`make test-browser` installs them).
"""

import argparse
import asyncio
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS / "integration" / "dashboard"), str(TESTS / "browser")]

RUN = "large-abc123"
SECONDS = 300.0
DRAWN = """pattern => new RegExp(pattern).test(document.querySelector("main")?.innerText ?? "")
    && document.querySelector(".u-over") !== null"""
FRAMES = """() => {
    window.frames_seen = [];
    const step = now => { window.frames_seen.push(now); requestAnimationFrame(step); };
    requestAnimationFrame(step);
}"""


def serve(folder: str, agents: int, points: int, ready: Any) -> None:
    """Serves the tournament, in a separate process."""
    from scripted_mesh import ScriptedMesh, fill

    async def run() -> None:
        async with ScriptedMesh(Path(folder)) as mesh:
            fill(mesh.add(RUN), agents=agents, points=points)
            ready.put(mesh.address)
            await asyncio.Event().wait()

    asyncio.run(run())


def view(browser: Any, url: str, text: str) -> tuple[Any, float]:
    """Opens the page in a new context; returns it, and the seconds until the text and the chart are there."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    # Sets the cookie; the page itself has loaded nothing yet.
    context.request.get(url)
    page = context.new_page()
    page.set_default_timeout(SECONDS * 1000)
    page.goto(f"{url.partition('/?')[0]}/#/t/{RUN}/board", wait_until="commit")
    page.wait_for_function(DRAWN, arg=text, polling="raf")
    return page, float(page.evaluate("performance.now()")) / 1000


def frames_per_second(page: Any) -> float:
    """Moves the mouse over the chart for about two seconds."""
    box = page.locator(".u-over").bounding_box()
    page.evaluate(FRAMES)
    for step in range(100):
        page.mouse.move(box["x"] + box["width"] * (step % 50) / 50, box["y"] + box["height"] / 2)
        page.wait_for_timeout(20)
    seen = page.evaluate("window.frames_seen")
    return 1000 * (len(seen) - 1) / (seen[-1] - seen[0])


def one_round(browser: Any, folder: Path, address: str, points: int) -> dict[str, float]:
    """Measures one gateway from its start."""
    from gateway_process import GatewayProcess

    gateway = GatewayProcess(folder, address, elsewhere=True)
    gateway.start()
    try:
        page, reading = view(browser, gateway.url, r"\d curves? from ")
        shown = f"{points / 1e6:.3g}M" if points >= 1e6 else f"{points / 1e3:.3g}k"
        page.wait_for_function(DRAWN, arg=f"from {shown} evaluations")
        page.context.close()
        page, read = view(browser, gateway.url, f"from {shown} evaluations")
        rate = frames_per_second(page)
        page.context.close()
        return {
            "reading_seconds": round(reading, 2),
            "read_seconds": round(read, 2),
            "frames_per_second": round(rate, 1),
            "gateway_mb": round(gateway.resident_bytes() / 1e6),
        }
    finally:
        gateway.kill()


def main() -> None:
    """Prints one line for each round, and the medians."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("agents", 500), ("points", 1_000_000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="podrace-view-") as folder, sync_playwright() as playwright:
        ready = context.Queue()
        mesh = context.Process(target=serve, args=(folder, given.agents, given.points, ready), daemon=True)
        mesh.start()
        address = ready.get(timeout=SECONDS)
        path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        found = []
        for _ in range(given.rounds):
            found.append(one_round(browser, Path(folder), address, given.points))
            print(json.dumps(found[-1]), flush=True)
        browser.close()
        mesh.kill()
    medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
    print(json.dumps({"median": medians, "rounds": given.rounds}))


if __name__ == "__main__":
    main()
