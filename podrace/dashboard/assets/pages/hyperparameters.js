// Hyperparameters against score as parallel coordinates, and their values over the time of the tournament.

import { get } from "../api.js";
import { scatter } from "../chart.js";
import { h, replace, scroller, select, table } from "../dom.js";
import { number, short } from "../formats.js";
import { parallel } from "../parallel.js";

const MOST_ROWS = 100;

export function hyperparameters(root, id) {
  let algorithm = "";
  let share = 100;
  let found = null;
  let plots = [];
  const choice = h("div", {});
  const shown = h("output", {}, "all agents");
  const range = h("input", { type: "range", min: "1", max: "100", value: "100", "aria-label": "Share of the best agents to show, in percent", oninput: (event) => {
    share = Number(event.target.value);
    draw();
  } });
  const lines = h("div", { class: "parallel scroll", tabindex: "0", role: "region", "aria-label": "Parallel coordinates" });
  const rows = h("div", {});
  const times = h("div", { class: "small" });
  replace(root, h("div", { class: "row" }, choice, h("label", {}, "Best agents", range), shown),
    h("h2", {}, "Hyperparameters against score"),
    h("figure", {}, h("figcaption", { class: "quiet" }, "One line for each agent, from its hyperparameters to its last score. Higher scores are brighter in the dark theme and darker in the light one."), lines), rows,
    h("h2", {}, "Schedules"), h("p", { class: "quiet" }, "Values when agents were generated; the line connects the champion and its ancestors."), times);

  function draw() {
    const best = found.rows.slice(0, Math.max(1, Math.ceil((found.rows.length * share) / 100)));
    shown.value = share === 100 ? `all ${found.rows.length} agents` : `the best ${best.length} of ${found.rows.length}`;
    parallel(lines, found.axes, best, found.rows);
    replace(rows, h("details", {}, h("summary", {}, `As a table (the best ${Math.min(MOST_ROWS, best.length)})`),
      scroller("Hyperparameters and scores", table("Hyperparameters and scores", [
        { title: "Agent", cell: (one) => h("a", { href: `#/t/${id}/lineage/${one.agent_id}` }, short(one.agent_id, id)) },
        { title: "Score", number: true, cell: (one) => number(one.score) },
        ...found.axes.map((axis, place) => ({ title: axis.name, number: axis.scale !== "choice", cell: (one) => number(one.values[place]) })),
      ], best.slice(0, MOST_ROWS)))));
  }

  async function refresh() {
    found = await get(`tournaments/${id}/hyperparameters`, { algorithm });
    algorithm = found.algorithm;
    replace(choice, select("Algorithm", "algorithm", found.algorithms.map((name) => [name, name]), algorithm, (value) => {
      algorithm = value;
      refresh();
    }));
    if (!found.axes.length) replace(lines, h("p", {}, "No hyperparameter differs between scored agents yet."));
    else draw();
    plots.forEach((stop) => stop());
    const frames = found.schedules.map((entry) => [entry, h("div", { class: "chart" })]);
    replace(times, frames.length ? frames.map(([entry, frame]) => h("figure", {}, h("figcaption", {}, entry.name), frame)) : h("p", {}, "No numeric hyperparameter differs yet."));
    plots = frames.map(([entry, frame]) => scatter(frame, entry));
  }

  const themed = () => found?.axes.length && draw();
  window.addEventListener("theme", themed);
  return { refresh, close: () => {
    window.removeEventListener("theme", themed);
    plots.forEach((stop) => stop());
  } };
}
