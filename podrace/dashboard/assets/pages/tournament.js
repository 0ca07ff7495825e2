// The page of one tournament: what it is, its actions, and a tab that is read again when its part has changed.

import { follow, get } from "../api.js";
import { facts, h, problem, replace } from "../dom.js";
import { count, duration, score, short, time } from "../formats.js";
import { refusedChange } from "../session.js";
import { actions } from "./actions.js";
import { board } from "./board.js";
import { champion } from "./champion.js";
import { checkpoints } from "./checkpoints.js";
import { events } from "./events.js";
import { hyperparameters } from "./hyperparameters.js";
import { lineage } from "./lineage.js";
import { state } from "./list.js";
import { logs } from "./logs.js";
import { pool } from "./pool.js";

// Each tab returns {refresh(), close()}; `parts` are those whose change it shows.
const TABS = {
  board: { title: "Leaderboard and curves", page: board, parts: ["board", "points"] },
  champion: { title: "Champion", page: champion, parts: ["tournament"] },
  lineage: { title: "Lineage", page: lineage, parts: ["agents"] },
  hyperparameters: { title: "Hyperparameters", page: hyperparameters, parts: ["agents"] },
  pool: { title: "Pool", page: pool, parts: ["tournament", "events"] },
  events: { title: "Events", page: events, parts: ["events"] },
  logs: { title: "Logs", page: logs, parts: ["events"] },
  checkpoints: { title: "Checkpoints", page: checkpoints, parts: ["board"] },
  specification: { title: "Specification", page: specification, parts: [] },
};
const REFRESH_MILLISECONDS = 1000;

function specification(root, id) {
  const text = h("pre", { tabindex: "0" });
  replace(root, h("h2", {}, "Specification with all defaults"), text);
  const refresh = async () => replace(text, (await get(`tournaments/${id}`)).specification);
  return { refresh, close: () => {} };
}

function summary(entry) {
  const share = entry.wall_clock_seconds ? ` of ${duration(entry.wall_clock_seconds)}` : "";
  return facts([
    ["Best score", score(entry.best_score, entry.best_score_standard_error)],
    ["Target", entry.target_return],
    ["Champion", entry.best_agent_id ? short(entry.best_agent_id, entry.tournament_id) : "none yet"],
    ["Running", `${duration(entry.running_seconds)}${share}`],
    ["Steps", `${count(entry.environment_steps)}${entry.objective_steps ? ` of ${count(entry.objective_steps)}` : ""}`],
    ["Steps/s", count(entry.steps_per_second)],
    ["Agents", `${entry.agents}${entry.failed_agents ? `, ${entry.failed_agents} failed` : ""}`],
    ["Environment", entry.environment],
    ["Algorithms", entry.algorithms.join(", ")],
    ["Strategy", entry.strategy],
    ["Owner", entry.owner],
    ["Created", time(entry.create_time)],
  ]);
}

export function tournament(root, status, id, tab, item) {
  document.title = `${id} – podrace`;
  const chosen = TABS[tab] ? tab : "board";
  const top = h("div", {});
  const loading = h("p", { class: "quiet", role: "status" });
  const content = h("div", {});
  const problems = h("div", {});
  replace(root, h("h1", {}, id), problems, top, loading,
    h("nav", { class: "tabs", "aria-label": "Parts of the tournament" }, Object.entries(TABS).map(([name, one]) =>
      h("a", { href: `#/t/${id}/${name}`, "aria-current": name === chosen ? "page" : null }, one.title))),
    content);
  const shown = TABS[chosen].page(content, id, item);
  let text = "";
  let seen = "";
  let drawn = "";
  let newest = null;
  let timer = 0;
  let last = 0;
  let running = false;
  let stopped = false;
  get(`tournaments/${id}`).then((found) => {
    text = found.specification;
  }, () => {});

  async function refresh(versions) {
    if (running || stopped) return;
    running = true;
    last = Date.now();
    try {
      await shown.refresh(versions);
      replace(problems);
    } catch (error) {
      if (error.status !== 0) replace(problems, problem(error));
    } finally {
      running = false;
    }
  }

  function head(entry) {
    newest = entry;
    // The buttons are made again only when they change, so that the keyboard does not lose its place.
    const kind = JSON.stringify([entry.state, entry.pool, entry.reason, entry.pause_reason, refusedChange(entry)]);
    if (kind !== drawn || !top.firstChild) {
      drawn = kind;
      replace(top, h("p", {}, state(entry), " ", entry.pause_reason || entry.reason), h("div", {}), actions(entry, () => text));
    }
    top.children[1].replaceChildren(summary(entry));
  }

  const again = () => newest && head(newest);
  window.addEventListener("session", again);
  const leave = follow(`tournaments/${id}/stream`, (event) => {
    status.live(event.faults);
    head(event.tournament);
    replace(loading, event.loaded ? "" : `Reading earlier submissions: ${count(event.points)} so far…`);
    const now = JSON.stringify([event.run, TABS[chosen].parts.map((part) => event.versions[part])]);
    if (now === seen) return;
    seen = now;
    clearTimeout(timer);
    timer = setTimeout(() => refresh(event.versions), Math.max(0, last + REFRESH_MILLISECONDS - Date.now()));
  }, (why) => {
    status.lost(why);
    // A tournament that does not exist has no stream; the call says why.
    get(`tournaments/${id}`).catch((error) => {
      if (error.status === 404 || error.status === 401 || error.status === 403) replace(problems, problem(error));
    });
  });
  return () => {
    stopped = true;
    window.removeEventListener("session", again);
    clearTimeout(timer);
    leave();
    shown.close();
  };
}
