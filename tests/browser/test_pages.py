"""People watch, filter, walk and control tournaments in a real browser, also with the keyboard alone."""

import re
from typing import Any

import pytest
from conftest import RUN, MeshThread
from gateway_process import GatewayProcess

from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_COMPLETED

pytestmark = pytest.mark.browser

SPECIFICATION = 'name = "new"\n[environment]\nid = "CartPole-v1"\n'


def open_tab(page: Any, gateway: GatewayProcess, tab: str, name: str = RUN) -> None:
    page.goto(f"{gateway.url.partition('/?')[0]}/#/t/{name}/{tab}")
    page.wait_for_selector("#connection[data-state=live]")
    page.wait_for_selector(".tabs")


def expect_text(page: Any, selector: str, pattern: str) -> None:
    page.wait_for_function(
        "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector)?.innerText ?? '')",
        arg=[selector, pattern],
    )


def test_a_live_tournament_changes_while_it_is_watched(page: Any, gateway: GatewayProcess, thread: MeshThread):
    page.click(f"text={RUN}")
    expect_text(page, "main", "12 curves from 240 evaluations")
    thread.call(thread.mesh.prepared[RUN].submit, 3, 499.25)
    expect_text(page, "main", "12 curves from 241 evaluations")
    expect_text(page, ".facts", r"499\.3")
    expect_text(page, ".virtual tbody tr:first-child", r"a3\s+1")


def test_the_first_view_asks_for_the_curves_once(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, "board")
    expect_text(page, "main", "12 curves from 240 evaluations")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/curves" in request.url else None)
    page.reload()
    expect_text(page, "main", "12 curves from 240 evaluations")
    expect_text(page, ".virtual tbody", "a3")
    page.select_option("select[name=axis]", "steps")
    expect_text(page, "main", "12 curves from 240 evaluations")
    assert [("axis=seconds" in url, "axis=steps" in url) for url in asked] == [(True, False), (False, True)]


def test_curves_are_drawn_by_choice_and_zoomed_with_the_keyboard(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, "board")
    expect_text(page, "main", "12 curves")
    page.select_option("select[name=of]", "families")
    expect_text(page, ".keys", "ppo")
    expect_text(page, "main", "[12] curves? from 240")
    page.select_option("select[name=of]", "champion")
    page.select_option("select[name=axis]", "steps")
    expect_text(page, "main", "1 curve from 240")
    page.focus("text=Zoom in")
    with page.expect_response(lambda response: "low=" in response.url):
        page.keyboard.press("Enter")
    with page.expect_response(lambda response: "/curves" in response.url and "low=" not in response.url):
        page.click("text=Show all")


def test_dragging_over_a_part_of_a_chart_enlarges_it(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, "board")
    expect_text(page, "main", "12 curves from 240 evaluations")
    box = page.locator(".u-over").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=4)
    with page.expect_response(lambda response: "low=" in response.url) as answered:
        page.mouse.up()
    found = answered.value.json()
    assert 0.15 * found["end"] < found["x"][0] < 0.25 * found["end"]


def test_the_lineage_is_walked_from_the_champion_to_its_ancestor(
    page: Any, gateway: GatewayProcess, thread: MeshThread
):
    entry = thread.mesh.prepared[RUN]
    child = thread.call(entry.generate, 2, 0.05)
    thread.call(entry.submit, child.number, 499.5)
    open_tab(page, gateway, "lineage")
    expect_text(page, "ol.path li.here", f"a{child.number}")
    expect_text(page, "ol.path li.here", r"learning_rate: [\d.e-]+ → 0\.05")
    page.click("ol.path >> text=/^a2$/")
    expect_text(page, "ol.path li.here", "^a2")
    expect_text(page, "main", f"Children of a2[\\s\\S]*a{child.number}")
    page.fill("input[name=agent]", "a99")
    page.press("input[name=agent]", "Enter")
    expect_text(page, "[role=alert]", "a99: not known")


def test_hyperparameters_are_shown_for_the_best_agents(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, "hyperparameters")
    expect_text(page, "output", r"all \d+ agents")
    page.focus("input[type=range]")
    page.keyboard.press("Home")
    expect_text(page, "output", r"the best 1 of \d+")
    assert "learning_rate" in page.get_attribute(".parallel canvas", "aria-label")
    page.wait_for_selector(".small .chart .u-wrap")


def test_pods_have_a_plane_and_reasons(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, "pool")
    expect_text(page, ".virtual tbody", r"p0\s+training\s+a0\s+shared")
    expect_text(page, "main", "free capacity for one more pod")


def test_the_use_of_gpus_is_shown_if_a_pod_has_any(page: Any, gateway: GatewayProcess, thread: MeshThread):
    open_tab(page, gateway, "pool")
    expect_text(page, ".virtual tbody", "p0")
    expect_text(page, ".virtual thead", "Policy lag")
    page.wait_for_selector("th.gpus", state="hidden")

    def use(*percents: int) -> None:
        tournament = thread.mesh.prepared[RUN]
        for number, percent in enumerate(percents):
            gpu = tournament.pods[0].progress.gpus.add(uuid=f"GPU-{number}", utilization_percent=percent)
            gpu.memory_used_bytes, gpu.memory_total_bytes = 2**30, 2**33
        tournament.changes.notify_all()

    thread.call(use, 60, 80)
    expect_text(page, ".virtual thead", "GPU use")
    expect_text(page, ".virtual tbody tr:first-child", r"2 GPUs, 70 %, 2 GiB of 16 GiB")


def test_the_log_of_a_pod_is_followed_and_its_control_characters_are_text(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, "pool")
    page.click(".virtual >> text=/^p0$/")
    expect_text(page, "pre.log", r"line 299 of p0\s*$")
    expect_text(page, "main", "200 lines")
    log = gateway.folder / "logs" / f"{RUN}-p0.log"
    with log.open("a") as file:
        file.write("\x1b[31m<img src=x onerror=alert(1)>\n")
    expect_text(page, "pre.log", re.escape("\\x1b[31m<img src=x onerror=alert(1)>"))
    assert page.locator("pre.log img").count() == 0
    bottom = "(pre => pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 2)(document.querySelector('pre.log'))"
    assert page.evaluate(bottom)
    page.uncheck("input[name=follow]")
    page.evaluate("document.querySelector('pre.log').scrollTop = 0")
    with log.open("a") as file:
        file.write("not followed\n")
    expect_text(page, "pre.log", "not followed")
    assert not page.evaluate(bottom)
    page.select_option("select[name=lines]", "50")
    expect_text(page, "main", "50 lines")


def test_a_killed_gateway_does_not_repeat_lines_of_a_log(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, f"logs/{RUN}-p0")
    expect_text(page, "main", "200 lines")
    gateway.kill()
    expect_text(page, "#connection[data-state=lost]", "Connection to the dashboard lost")
    gateway.start()
    page.wait_for_selector("#connection[data-state=live]")
    expect_text(page, "main", "200 lines")
    assert page.inner_text("pre.log").count("line 299 of p0") == 1


@pytest.mark.parametrize("gateway", ["elsewhere"], indirect=True)
def test_the_logs_of_a_mesh_elsewhere_are_read_where_it_runs(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, f"logs/{RUN}-p0")
    expect_text(page, "[role=alert]", "use `docker logs` or `kubectl logs`")


def test_the_champion_is_compared_with_the_market(page: Any, gateway: GatewayProcess, thread: MeshThread):
    open_tab(page, gateway, "champion")
    expect_text(page, "main", r"The champion is a\d+")
    page.select_option("select[name=report]", "backtest")
    expect_text(page, "main", "The report backtest is made when the tournament has ended")
    assert page.is_disabled("text=Evaluate the champion")
    thread.call(thread.mesh.prepared[RUN].set_state, TOURNAMENT_STATE_COMPLETED, "target reached")
    expect_text(page, "main", "completed")
    expect_text(page, "select[name=report]", "validation")
    page.select_option("select[name=report]", "backtest")
    page.click("text=Evaluate the champion")
    expect_text(page, "main", "backtest: mean return 0.21 over 1 episode")
    expect_text(page, "main table", r"sharpe ratio\s+1\.4\s+0\.6\s+0\.7")
    expect_text(page, "main", "Drawdown[\\s\\S]*Value of the shares / account value")
    expect_text(page, "main", "120 values from 2012-01-02 to 2012-04-30")
    assert page.locator("figure .u-over").count() == 3
    page.locator("figure .u-over").first.scroll_into_view_if_needed()
    box = page.locator("figure .u-over").first.bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, box["y"] + 50, steps=3)
    page.mouse.up()
    page.click("text=Show all")


def test_a_report_is_refused_without_the_role(page: Any, gateway: GatewayProcess, thread: MeshThread):
    thread.mesh.refuses_changes = True
    open_tab(page, gateway, "champion")
    page.click("text=Evaluate the champion")
    expect_text(page, "[role=alert]", "the role viewer may not call this method; it needs user")


def test_an_episode_is_a_video_that_plays(page: Any, gateway: GatewayProcess):
    pytest.importorskip("av", reason="videos need podrace[video]")
    open_tab(page, gateway, "champion")
    page.fill("input[name=seed]", "7")
    page.click("text=Draw an episode")
    expect_text(page, "figure.episode", "The champion, seed 7: return 12.5 in 20 steps")
    video = "document.querySelector('figure.episode video')"
    page.wait_for_function(f"() => {video}.readyState >= 2 || {video}.error")
    assert page.evaluate(f"{video}.error") is None
    assert page.evaluate(f"[{video}.videoWidth, {video}.videoHeight, {video}.controls]") == [64, 48, True]
    page.fill("input[name=agent]", "a99")
    page.click("text=Draw an episode")
    expect_text(page, "main [role=alert]", "a99: not on the board")


def test_events_are_filtered_by_kind_agent_and_words(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, "events")
    expect_text(page, "main", "16 shown of 16")
    page.select_option("select[name=kind]", "pod_started")
    expect_text(page, "main", "4 shown of 16")
    page.select_option("select[name=kind]", "")
    page.fill("input[name=agent]", "a7")
    expect_text(page, "main", "1 shown of 16")
    page.fill("input[name=agent]", "")
    page.fill("input[name=words]", "FREE CAPACITY FOR ONE")
    expect_text(page, "main", "4 shown of 16")


def test_a_checkpoint_shows_its_size_and_how_to_export_it(page: Any, gateway: GatewayProcess):
    open_tab(page, gateway, "checkpoints")
    page.click("button:has-text('Show') >> nth=0")
    expect_text(page, "main", "rank 1: 4 MiB")
    expect_text(page, "pre", r"podrace export [0-9a-f]{64} --folder a\d+-policy")


def test_the_champions_of_two_tournaments_are_compared(page: Any, gateway: GatewayProcess, thread: MeshThread):
    thread.call(thread.mesh.prepared["empty-abc123"].generate)
    thread.call(thread.mesh.prepared["empty-abc123"].submit, 0, 123.0)
    page.reload()
    page.check(f"input[aria-label='Compare {RUN}']")
    page.check("input[aria-label='Compare empty-abc123']")
    page.click("text=Compare learning curves")
    expect_text(page, ".keys", RUN)
    expect_text(page, ".keys", "empty-abc123")
    page.wait_for_selector(".u-over")


def test_a_tournament_is_checked_and_started(page: Any, gateway: GatewayProcess, thread: MeshThread):
    page.click("text=New tournament")
    page.fill("#specification", SPECIFICATION.replace("CartPole-v1", "unknown"))
    page.click("text=/^Check$/")
    expect_text(page, "[role=alert]", "there is no such environment")
    page.fill("#specification", "nonsense = 1")
    page.click("button:has-text('Start tournament')")
    expect_text(page, "[role=alert]", "nonsense")
    page.fill("#specification", SPECIFICATION)
    page.click("text=/^Check$/")
    expect_text(page, ".notice", "can be used[\\s\\S]*no machine answers")
    assert thread.mesh.requests == []
    page.click("button:has-text('Start tournament')")
    expect_text(page, "h1", "^new-new")


def test_a_tournament_is_paused_scaled_resumed_stopped_and_deleted(
    page: Any, gateway: GatewayProcess, thread: MeshThread
):
    open_tab(page, gateway, "board")
    page.click("text=Pause…")
    page.fill("dialog input[name=reason]", "lunch")
    page.click("dialog >> text=/^Pause$/")
    expect_text(page, "main", "paused by alice: lunch")
    page.click("text=Resume…")
    page.click("dialog >> text=/^Resume$/")
    expect_text(page, ".state", "running")
    page.click("text=Scale…")
    page.fill("input[name=maximum_pods]", "7")
    page.click("dialog >> text=/^Scale$/")
    page.wait_for_selector("dialog", state="detached")
    assert thread.mesh.requests[-1].pool.maximum_pods == 7
    page.click("text=Stop…")
    page.click("dialog >> text=/^Stop$/")
    expect_text(page, ".state", "cancelled")
    page.click("text=Delete…")
    page.fill("dialog input[name=confirm]", "something else")
    page.click("dialog >> text=/^Delete$/")
    expect_text(page, "dialog [role=alert]", "the id of the tournament to delete")
    page.fill("dialog input[name=confirm]", RUN)
    page.click("dialog >> text=/^Delete$/")
    expect_text(page, "h1", "^Tournaments$")
    assert RUN not in thread.mesh.prepared


def test_without_the_role_an_action_is_refused_and_the_page_shows_why(
    page: Any, gateway: GatewayProcess, thread: MeshThread
):
    thread.mesh.refuses_changes = True
    open_tab(page, gateway, "board")
    page.click("text=Stop…")
    page.click("dialog >> text=/^Stop$/")
    expect_text(page, "dialog [role=alert]", "the role viewer may not call this method; it needs user")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.evaluate("document.activeElement.textContent") == "Stop…"
    assert thread.mesh.requests == []


def test_a_killed_gateway_is_noticed_and_the_page_recovers_by_itself(
    page: Any, gateway: GatewayProcess, thread: MeshThread
):
    open_tab(page, gateway, "board")
    expect_text(page, "main", "from 240 evaluations")
    gateway.kill()
    expect_text(page, "#connection[data-state=lost]", "Connection to the dashboard lost")
    thread.call(thread.mesh.prepared[RUN].submit, 3, 499.25)
    gateway.start()
    page.wait_for_selector("#connection[data-state=live]")
    expect_text(page, "main", "from 241 evaluations")


def test_a_mesh_that_stops_is_noticed_and_the_page_recovers_by_itself(
    page: Any, gateway: GatewayProcess, thread: MeshThread
):
    open_tab(page, gateway, "board")
    expect_text(page, "main", "from 240 evaluations")
    thread.wait(thread.mesh.stop())
    expect_text(page, "#connection[data-state=lost]", "The mesh does not answer")
    thread.wait(thread.mesh.start())
    thread.call(thread.mesh.prepared[RUN].submit, 3, 499.25)
    page.wait_for_selector("#connection[data-state=live]")
    expect_text(page, "main", "from 241 evaluations")


def test_text_of_the_mesh_is_never_html(page: Any, gateway: GatewayProcess, thread: MeshThread):
    thread.call(thread.mesh.prepared[RUN].record, "<img src=x onerror=alert(1)>", "<script>alert(1)</script>")
    open_tab(page, gateway, "events")
    expect_text(page, "main", re.escape("<script>alert(1)</script>"))
    assert page.locator("main img, main script").count() == 0


def test_the_theme_is_kept(page: Any, gateway: GatewayProcess):
    def background() -> str:
        found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    light = background()
    page.click("#theme")
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: dark"
    dark = background()
    assert dark != light
    page.reload()
    assert background() == dark


def test_every_control_is_reached_with_the_keyboard(page: Any, gateway: GatewayProcess):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    open_tab(page, gateway, "board")
    expect_text(page, "main", "12 curves")
    reached = set()
    page.focus("#theme")
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.name"))
    assert {"Pause…", "Stop…", "Zoom in", "Lineage"} <= reached
