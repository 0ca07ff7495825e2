"""axe-core finds nothing wrong with any page, in the light and in the dark theme."""

from typing import Any

import pytest
from conftest import RUN
from gateway_process import GatewayProcess

pytestmark = pytest.mark.browser

PAGES = (
    ("#/", ".scroll table"),
    ("#/new", "#specification"),
    (f"#/compare/{RUN},empty-abc123", ".u-over"),
    (f"#/t/{RUN}/board", ".u-over"),
    (f"#/t/{RUN}/champion", "select[name=report]"),
    (f"#/t/{RUN}/lineage", "ol.path"),
    (f"#/t/{RUN}/hyperparameters", ".parallel canvas"),
    (f"#/t/{RUN}/pool", ".virtual tbody th"),
    (f"#/t/{RUN}/events", ".scroll table"),
    (f"#/t/{RUN}/logs", "select[name=log]"),
    (f"#/t/{RUN}/logs/{RUN}-p0", "pre.log:not(:empty)"),
    (f"#/t/{RUN}/checkpoints", ".virtual button"),
    (f"#/t/{RUN}/specification", "pre:not(:empty)"),
    ("#/t/empty-abc123/board", ".virtual"),
    ("#/nothing", "h1"),
)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_and_no_dialog_has_violations(page: Any, gateway: GatewayProcess, axe: str, theme: str):
    page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
    found = []
    for path, ready in PAGES:
        page.goto(f"{gateway.url.partition('/?')[0]}/{path}")
        page.reload()
        page.wait_for_selector(ready)
        found += [f"{path}: {line}" for line in violations(page, axe)]
    page.goto(f"{gateway.url.partition('/?')[0]}/#/t/{RUN}/board")
    for action in ("Scale…", "Pause…", "Stop…"):
        page.click(f"text={action}")
        found += [f"{action}: {line}" for line in violations(page, axe)]
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
    page.goto(f"{gateway.url.partition('/?')[0]}/#/t/{RUN}/champion")
    page.click("text=Evaluate the champion")
    page.wait_for_selector("figure .u-over")
    page.click("text=Draw an episode")
    page.wait_for_selector("figure.episode")
    found += [f"report and episode: {line}" for line in violations(page, axe)]
    assert found == []


def violations(page: Any, axe: str) -> list[str]:
    """One line for each violation."""
    # Evaluated by the debugging protocol, because the page refuses scripts from elsewhere.
    page.evaluate(f"{axe}; undefined")
    found = page.evaluate("axe.run(document)")
    assert len(found["passes"]) > 5
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]]
