// Lists the tournaments, and lets several be chosen for comparison.

import { follow, get } from "../api.js";
import { h, problem, replace, scroller, table } from "../dom.js";
import { count, duration, score, time } from "../formats.js";

const PAGE = 100;

export function state(entry) {
  const shown = entry.pause_reason && entry.state === "running" ? "paused" : entry.state;
  return h("span", { class: `state ${shown}` }, shown);
}

export function list(root, status) {
  document.title = "Tournaments – podrace";
  const chosen = new Set();
  const content = h("div", {});
  const compare = h("a", { class: "button", href: "#/compare/" }, "Compare learning curves");
  let words = "";
  let offset = 0;
  let states = "";
  const search = h("input", { type: "search", name: "words", maxlength: "200", oninput: (event) => {
    words = event.target.value;
    offset = 0;
    load();
  } });
  replace(root, h("h1", {}, "Tournaments"),
    h("div", { class: "row" }, h("label", {}, "Search by name or environment", search), compare), content);
  link();

  function link() {
    compare.hidden = chosen.size < 2;
    compare.href = `#/compare/${[...chosen].join(",")}`;
  }

  const columns = [
    { title: "Tournament", cell: (entry) => h("a", { href: `#/t/${entry.tournament_id}` }, entry.tournament_id) },
    { title: "Compare", cell: (entry) => h("input", { type: "checkbox", "aria-label": `Compare ${entry.tournament_id}`, checked: chosen.has(entry.tournament_id), onchange: (event) => {
      if (event.target.checked) chosen.add(entry.tournament_id);
      else chosen.delete(entry.tournament_id);
      link();
    } }) },
    { title: "State", cell: state },
    { title: "Environment", cell: (entry) => entry.environment },
    { title: "Best score", number: true, cell: (entry) => score(entry.best_score, entry.best_score_standard_error) },
    { title: "Agents", number: true, cell: (entry) => `${entry.agents}` },
    { title: "Steps", number: true, cell: (entry) => count(entry.environment_steps) },
    { title: "Steps/s", number: true, cell: (entry) => count(entry.steps_per_second) },
    { title: "Running", number: true, cell: (entry) => duration(entry.running_seconds) },
    { title: "Created", cell: (entry) => time(entry.create_time) },
  ];

  async function load() {
    const asked = words;
    try {
      const found = await get("tournaments", { words, offset, limit: PAGE });
      if (asked !== words) return;
      const step = (to, text) => h("button", { type: "button", disabled: to < 0 || to >= found.total, onclick: () => {
        offset = to;
        load();
      } }, text);
      replace(content, found.total
        ? [scroller("Tournaments", table("Tournaments, newest first", columns, found.entries)),
          found.total > PAGE ? h("div", { class: "row" }, step(offset - PAGE, "Newer"), step(offset + PAGE, "Older"), `${offset + 1} to ${Math.min(offset + PAGE, found.total)} of ${found.total}`) : null]
        : h("p", { class: "notice" }, words ? "No tournament matches." : "No tournaments yet. ", words ? null : h("a", { href: "#/new" }, "Start one")));
    } catch (error) {
      replace(content, problem(error));
    }
  }

  load();
  return follow("stream", (event) => {
    status.live(event.faults);
    const seen = JSON.stringify([event.run, event.states]);
    if (event.states && (seen !== states || Object.values(event.states).includes("running"))) {
      states = seen;
      // A table that has the focus stays, so that the keyboard does not lose its place.
      if (!content.contains(document.activeElement)) load();
    }
  }, status.lost);
}
