// The leaderboard and the learning curves of a tournament.

import { get } from "../api.js";
import { keys, lineChart } from "../chart.js";
import { h, replace, select } from "../dom.js";
import { early } from "../early.js";
import { count, duration, number, score, short } from "../formats.js";
import { virtualTable } from "../virtual.js";

const OF = [["agents", "all agents"], ["families", "algorithms: median and 10 to 90 %"], ["champion", "champion"]];
const AXIS = [["seconds", "wall-clock time"], ["steps", "environment steps"], ["compute", "core seconds"]];

export function board(root, id) {
  let [of, axis, range] = ["agents", "seconds", null];
  let drawn = null;
  let end = 1;
  let version = null;
  const chart = h("div", { class: "chart" });
  const legend = h("div", {});
  const note = h("p", { class: "quiet" });
  const move = (text, change) => h("button", { type: "button", onclick: () => {
    const [low, high] = range ?? [0, end];
    range = change(low, high);
    curves();
  } }, text);
  const zoom = (factor) => (low, high) => {
    const [middle, half] = [(low + high) / 2, ((high - low) / 2) * factor];
    return factor > 1 && half * 2 >= end ? null : [Math.max(0, middle - half), middle + half];
  };
  const pan = (share) => (low, high) => {
    const by = Math.max((high - low) * share, -low);
    return [low + by, high + by];
  };
  const rows = virtualTable("Leaderboard, best first", [
    { title: "Agent", cell: (one) => h("a", { href: `#/t/${id}/lineage/${one.agent_id}` }, short(one.agent_id, id)) },
    { title: "Rank", number: true, cell: (one) => `${one.rank}` },
    { title: "Algorithm", cell: (one) => one.algorithm },
    { title: "Score", number: true, cell: (one) => score(one.score, one.standard_error) },
    { title: "Estimate", number: true, cell: (one) => score(one.estimate, one.estimate_error) },
    { title: "Won, drawn, lost", number: true, cell: (one) => (one.games ? one.games.map(count).join(", ") : "–") },
    { title: "Episodes", number: true, cell: (one) => count(one.episodes) },
    { title: "Steps", number: true, cell: (one) => count(one.environment_steps) },
    { title: "Core time", number: true, cell: (one) => duration(one.core_seconds) },
    { title: "Generation", number: true, cell: (one) => `${one.depth}` },
    { title: "Why it is on the board", cell: (one) => one.reason },
  ], (offset, limit) => get(`tournaments/${id}/board`, { offset, limit }));
  const change = (act) => (value) => {
    act(value);
    range = null;
    curves();
  };
  replace(root,
    h("h2", {}, "Learning curves"),
    h("div", { class: "row" },
      select("Curves of", "of", OF, of, change((value) => { of = value; })),
      select("Draw against", "axis", AXIS, axis, change((value) => { axis = value; })),
      move("Zoom in", zoom(0.5)), move("Zoom out", zoom(2)), move("Earlier", pan(-0.5)), move("Later", pan(0.5)), move("Show all", () => null)),
    h("figure", {}, h("figcaption", { class: "quiet" }, "Score of each evaluation. Drag over a part to enlarge it."), chart, legend, note),
    h("h2", {}, "Leaderboard"), rows.element);

  async function curves() {
    const asked = JSON.stringify([of, axis, range]);
    const width = Math.max(50, Math.min(500, Math.round(chart.clientWidth / 2) || 400));
    const data = await get(`tournaments/${id}/curves`, { of, axis, width, low: range?.[0], high: range?.[1] });
    if (asked === JSON.stringify([of, axis, range])) show(data);
  }

  function show(data) {
    if (!root.isConnected) return;
    version = data.version;
    end = data.end || 1;
    if (drawn) drawn.update(data);
    else drawn = lineChart(chart, data, { label: "score", zoomed: (low, high) => {
      range = [low, high];
      curves();
    } });
    replace(legend, data.series.length ? keys(data) : null);
    replace(note, described(data));
  }

  // What the chart shows, in words.
  function described(data) {
    if (!data.series.length) return "No evaluations yet.";
    const last = data.series.map((one) => [one.name, one.y.findLast((value) => value !== null)]).filter(([, value]) => value !== undefined);
    const [name, value] = last.reduce((best, one) => (one[1] > best[1] ? one : best), ["", -Infinity]);
    const omitted = data.left_out ? ` ${data.left_out} curves with lower scores are left out.` : "";
    return `${data.series.length === 1 ? "1 curve" : `${data.series.length} curves`} from ${count(data.points)} evaluations. Highest last value: ${number(value)} (${short(name, id)}).${omitted}`;
  }

  // The curves that were asked for before this module was loaded; drawn unless others were asked for meanwhile.
  let first = early(id);
  first = first?.then((data) => {
    if (data && version === null && of === "agents" && axis === "seconds" && !range) show(data);
  });

  // `versions` are those of the event that makes it necessary; the early curves may be as new.
  async function refresh(versions) {
    const begun = rows.refresh();
    if (first) {
      await first;
      first = null;
    } else version = null;
    await Promise.all([version === versions.points ? null : curves(), begun]);
  }

  return {
    refresh,
    close: () => drawn?.destroy(),
  };
}
