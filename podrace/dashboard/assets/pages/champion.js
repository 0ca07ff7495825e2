// The champion: an episode as video, and reports such as a backtest. Both are computed on request.

import { get, post } from "../api.js";
import { keys, lineChart } from "../chart.js";
import { h, problem, replace, scroller, select, table } from "../dom.js";
import { count, number, score, short } from "../formats.js";

const POLL_MILLISECONDS = 1000;

export function champion(root, id, item) {
  let stopped = false;
  let drawn = [];
  let known = "";
  const who = h("p", {});
  const agent = h("input", { name: "agent", value: item ? short(item, id) : "", placeholder: "champion", maxlength: "100" });
  const seed = h("input", { name: "seed", type: "number", min: "0", max: "2147483647", value: "0", required: true });
  let data = "";
  const environment = h("div", {});
  const video = h("div", { "aria-live": "polite" });
  const choice = h("div", {});
  const result = h("div", { "aria-live": "polite" });
  const draw = h("button", { type: "submit" }, "Draw an episode");
  replace(root, h("h2", {}, "Champion"), who,
    h("h2", {}, "Episode"),
    h("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      const wanted = agent.value.trim();
      const full = !wanted || wanted.startsWith(`${id}-`) ? wanted : `${id}-${wanted}`;
      run("episode", { agent: full, seed: Number(seed.value), report: data }, draw, video, showEpisode);
    } }, h("label", {}, "Agent on the board", agent), environment, h("label", {}, "Seed", seed), draw),
    video, h("h2", {}, "Reports"), choice, result);

  // Starts a job, or finds the one that was started before, and shows its result.
  async function run(kind, body, button, place, show) {
    button.disabled = true;
    try {
      let job = await post(`tournaments/${id}/${kind}`, body);
      while (!stopped && ["waiting", "running"].includes(job.state)) {
        const text = job.state === "running" ? "Working…" : "Waiting for other jobs…";
        if (place.textContent !== text) replace(place, h("p", { class: "quiet" }, text));
        await new Promise((done) => { setTimeout(done, POLL_MILLISECONDS); });
        job = await get(`jobs/${job.job}`);
      }
      if (stopped) return;
      if (job.state === "failed") throw Object.assign(new Error(job.error), { details: [] });
      show(job.result, place, body);
    } catch (error) {
      if (!stopped) replace(place, problem(error));
    } finally {
      button.disabled = false;
    }
  }

  function showEpisode(found, place, body) {
    const text = `${body.agent ? short(body.agent, id) : "The champion"}, ${body.report ? `report ${body.report}, ` : ""}seed ${body.seed}: return ${number(found.episode_return)} in ${count(found.steps)} steps${found.ended ? "" : ", cut off"}`;
    const picture = found.video
      ? h("video", { src: found.file, controls: true, loop: true, muted: true, playsinline: true, preload: "auto", "aria-label": `Episode. ${text}` })
      : h("img", { src: found.file, alt: `Episode. ${text}` });
    const hide = found.video ? null : h("button", { type: "button", onclick: () => replace(place) }, "Remove the animation");
    replace(place, h("figure", { class: "episode" }, picture, h("figcaption", {}, text)), hide);
  }

  const shown = (one) => (value) => (value === null ? "–" : one.percent ? `${number(value * 100)} %` : number(value));

  function showReport(found, place, body) {
    clear();
    const parts = [h("p", {}, `${body.report}: mean return ${score(found.mean_return, found.standard_error)} over ${found.episodes} ${found.episodes === 1 ? "episode" : "episodes"}`)];
    if (found.evaluator_fault) parts.push(h("p", { class: "notice" }, `The built-in evaluator replaced the plugin: ${found.evaluator_fault}`));
    if (found.comparison.rows.length) {
      parts.push(table("The account compared with the market", [
        { title: "Measure", cell: (one) => one.name },
        ...found.comparison.columns.map((title, column) => ({ title, number: true, cell: (one) => shown(one)(one.values[column]) })),
      ], found.comparison.rows));
    }
    const charts = found.charts.map((data) => {
      const chart = h("div", { class: "chart" });
      parts.push(h("figure", {}, h("figcaption", {}, data.title), chart, data.series.length > 1 ? keys(data) : null, h("p", { class: "quiet" }, described(data))));
      return [chart, data];
    });
    if (found.metrics.length) {
      parts.push(scroller("Metrics", table("Other metrics of the evaluation", [
        { title: "Metric", cell: (one) => one.name },
        { title: "Value", number: true, cell: (one) => shown(one)(one.value) },
      ], found.metrics)));
    }
    replace(place, parts);
    drawn = charts.map(([chart, data]) => account(chart, data));
  }

  // A chart in which a dragged range is enlarged; the data are all there.
  function account(chart, whole) {
    const reset = h("button", { type: "button", hidden: true, onclick: () => show(null) }, "Show all");
    const plot = lineChart(chart, whole, { label: "", zoomed: (low, high) => show([low, high]) });
    chart.after(reset);
    function show(range) {
      const inside = (place) => !range || (whole.x[place] >= range[0] && whole.x[place] <= range[1]);
      const part = (column) => column.filter((value, place) => inside(place));
      const x = part(whole.x);
      if (x.length < 2) return;
      reset.hidden = !range;
      plot.update({ ...whole, x, series: whole.series.map((one) => ({ ...one, y: part(one.y) })) });
    }
    return plot;
  }

  // What a chart shows, in words.
  function described(data) {
    const when = data.labels.length ? ` from ${data.labels[0]} to ${data.labels.at(-1)}` : "";
    const lines = data.series.map((one) => {
      const values = one.y.filter((value) => value !== null);
      return values.length ? `${one.name}: last ${number(values.at(-1), 6)}, lowest ${number(Math.min(...values), 6)}, highest ${number(Math.max(...values), 6)}` : one.name;
    });
    return `${data.x.length} values${when}. ${lines.join("; ")}.`;
  }

  function clear() {
    for (const one of drawn) one.destroy();
    drawn = [];
  }

  async function refresh() {
    const found = await get(`tournaments/${id}/champion`);
    const now = JSON.stringify(found);
    if (stopped || now === known) return;
    known = now;
    replace(who, found.members.length
      ? ["The champion is ", ...found.members.flatMap((one, place) => [place ? ", with " : "", h("a", { href: `#/t/${id}/lineage/${one.agent_id}` }, short(one.agent_id, id))]), "."]
      : "There is no candidate yet.");
    draw.disabled = !found.members.length;
    const allowed = found.reports.filter((one) => !one.refused);
    if (!allowed.some((one) => one.name === data)) data = "";
    replace(environment, allowed.length ? select("Environment", "environment", [["", "of the evaluations"], ...allowed.map((one) => [one.name, `of the report ${one.name}`])], data, (value) => { data = value; }) : null);
    if (!found.reports.length) {
      replace(choice, h("p", {}, "The specification has no ", h("code", {}, "[reports]"), "."));
      return;
    }
    const button = h("button", { type: "submit" }, "Evaluate the champion");
    const why = h("p", { class: "quiet" });
    const picked = (name) => {
      const one = found.reports.find((other) => other.name === name);
      button.disabled = one.refused !== "";
      replace(why, one.refused ? `The report ${name} ${one.refused}.` : `${one.episodes} ${one.episodes === 1 ? "episode" : "episodes"}${one.options ? ` with ${one.options}` : ""}, by a pod.`);
    };
    let name = (found.reports.find((one) => !one.refused) ?? found.reports[0]).name;
    replace(choice, h("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      run("report", { report: name }, button, result, showReport);
    } }, select("Report", "report", found.reports.map((one) => [one.name, one.name]), name, (value) => {
      name = value;
      picked(name);
    }), button), why);
    picked(name);
  }

  return {
    refresh,
    close: () => {
      stopped = true;
      clear();
    },
  };
}
