// Draws the champions' learning curves of several tournaments in one chart.

import { get } from "../api.js";
import { lineChart, keys } from "../chart.js";
import { h, problem, replace, scroller, select, table } from "../dom.js";
import { score } from "../formats.js";
import { state } from "./list.js";

const REFRESH_MILLISECONDS = 3000;

export function compare(root, status, ids) {
  document.title = "Comparison – podrace";
  const names = [...new Set(ids)].slice(0, 8);
  const chart = h("div", { class: "chart" });
  const legend = h("div", {});
  const facts = h("div", {});
  const problems = h("div", {});
  let axis = "seconds";
  let range = null;
  let drawn = null;
  let stopped = false;
  replace(root, h("h1", {}, `Comparison of ${names.length} tournaments`),
    h("div", { class: "row" }, select("Draw against", "axis", [["seconds", "wall-clock time"], ["steps", "environment steps of all agents"], ["compute", "core seconds of all agents"]], axis, (value) => {
      axis = value;
      range = null;
      load();
    }), h("button", { type: "button", onclick: () => {
      range = null;
      load();
    } }, "Show all")),
    problems, h("figure", {}, h("figcaption", {}, "Estimate of the candidate that led each tournament"), chart, legend), facts);

  async function load() {
    try {
      const asked = { of: "champion", axis, width: 400 };
      const ends = range ? [] : await Promise.all(names.map((name) => get(`tournaments/${name}/curves`, { ...asked, width: 1 })));
      const [low, high] = range ?? [0, Math.max(...ends.map((one) => one.end), 1e-9)];
      const found = await Promise.all(names.map((name) => get(`tournaments/${name}/curves`, { ...asked, low, high })));
      const details = await Promise.all(names.map((name) => get(`tournaments/${name}`)));
      if (stopped) return;
      const data = { axis, of: "compare", x: found[0].x, series: found.flatMap((one, index) => one.series.map((line) => ({ ...line, name: names[index] }))) };
      if (drawn) drawn.update(data);
      else drawn = lineChart(chart, data, { label: "score", zoomed: (from, to) => {
        range = [from, to];
        load();
      } });
      replace(legend, keys(data));
      replace(problems);
      replace(facts, scroller("Compared tournaments", table("Compared tournaments", [
        { title: "Tournament", cell: (one) => h("a", { href: `#/t/${one.tournament_id}` }, one.tournament_id) },
        { title: "State", cell: state },
        { title: "Environment", cell: (one) => one.environment },
        { title: "Strategy", cell: (one) => one.strategy },
        { title: "Best score", number: true, cell: (one) => score(one.best_score, one.best_score_standard_error) },
        { title: "Agents", number: true, cell: (one) => `${one.agents}` },
      ], details)));
      status.live();
    } catch (error) {
      if (error.status === 0) status.lost(error.message);
      else replace(problems, problem(error));
    }
  }

  load();
  const timer = setInterval(load, REFRESH_MILLISECONDS);
  return () => {
    stopped = true;
    clearInterval(timer);
    drawn?.destroy();
  };
}
