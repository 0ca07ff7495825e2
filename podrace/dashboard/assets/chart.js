// Draws line charts with uPlot: many curves over one axis, with zoom, and the nearest curve under the pointer.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { h, replace } from "./dom.js";
import { count, duration, number } from "./formats.js";

const LIGHT = ["#0b57b8", "#b3400a", "#116329", "#8a1fa0", "#7a6100", "#00707a", "#a40e26", "#5a4fcf"];
const DARK = ["#7db4ff", "#ffa366", "#6fd08c", "#e19bf2", "#e5cc5c", "#5fd4de", "#ff9aa2", "#b3abff"];
const HEIGHT = 340;

export const AXES = { seconds: "wall-clock time", steps: "environment steps", compute: "core seconds", days: "day" };

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function color(place) {
  const palette = isDark() ? DARK : LIGHT;
  return palette[place % palette.length];
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A position in words: that of a day is its date, if `dates` has one for each day.
export function position(axis, value, dates = []) {
  if (axis === "days") return dates[Math.round(value)] ?? count(value);
  return axis === "seconds" ? duration(value) : count(value);
}

function axes(axis, labels, dates = []) {
  const common = { stroke: style("--text"), grid: { stroke: style("--grid"), width: 1 }, ticks: { stroke: style("--line"), width: 1 }, font: "12px system-ui" };
  return [
    { ...common, space: 100, label: labels[0], labelFont: "12px system-ui", values: (chart, values) => values.map((value) => position(axis, value, dates)) },
    { ...common, label: labels[1], labelFont: "12px system-ui", size: 64, values: (chart, values) => values.map((value) => number(value)) },
  ];
}

// Draws into `container`. `data` is the JSON of a chart; `zoomed(low, high)` is called when a range was dragged.
// Returns {update(data), destroy()}.
export function lineChart(container, data, { label, zoomed }) {
  let plot = null;
  let current = data;
  let near = -1;
  const place = h("div", {});
  const tip = h("div", { class: "tip", "aria-hidden": "true" });
  replace(container, place, tip);

  function series(shown) {
    const names = [...new Set(shown.series.map((one) => one.algorithm))];
    const many = shown.series.length > 12;
    return shown.series.flatMap((one, index) => {
      const stroke = many || one.low ? color(names.indexOf(one.algorithm)) : color(index);
      const line = { label: one.name, stroke, width: many ? 1 : 2, alpha: many ? 0.55 : 1, spanGaps: true, points: { show: false } };
      return one.low ? [line, { ...line, width: 1, alpha: 0.4 }, { ...line, width: 1, alpha: 0.4 }] : [line];
    });
  }

  function values(shown) {
    return [shown.x, ...shown.series.flatMap((one) => (one.low ? [one.y, one.low, one.high] : [one.y]))];
  }

  function draw() {
    plot?.destroy();
    plot = new uPlot({
      width: Math.max(280, container.clientWidth - 16),
      height: HEIGHT,
      legend: { show: false },
      cursor: { points: { show: false }, drag: { x: true, y: false, setScale: false }, y: false },
      scales: { x: { time: false } },
      axes: axes(current.axis, [AXES[current.axis], label], current.labels),
      series: [{}, ...series(current)],
      hooks: {
        setCursor: [(chart) => pointed(chart)],
        draw: [(chart) => emphasize(chart)],
        setSelect: [(chart) => {
          if (chart.select.width < 4) return;
          zoomed(chart.posToVal(chart.select.left, "x"), chart.posToVal(chart.select.left + chart.select.width, "x"));
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    }, values(current), place);
    plot.root.setAttribute("aria-hidden", "true");
  }

  // Finds the curve whose last value at or before the pointer is nearest to it.
  function pointed(chart) {
    const { left, top, idx } = chart.cursor;
    let best = -1;
    let distance = 24;
    if (idx !== null && idx !== undefined && left >= 0) {
      for (let index = 1; index < chart.data.length; index += 1) {
        let at = idx;
        while (at > 0 && idx - at < 12 && chart.data[index][at] == null) at -= 1;
        const value = chart.data[index][at];
        if (value == null) continue;
        const away = Math.abs(chart.valToPos(value, "y") - top);
        if (away < distance) [best, distance] = [index, away];
      }
    }
    const at = best > 0 ? chart.data[0][idx] : 0;
    tip.textContent = best > 0 ? `${chart.series[best].label} at ${position(current.axis, at, current.labels)}: ${number(lastAt(chart.data[best], idx))}` : "";
    if (best !== near) {
      near = best;
      mark.textContent = "";
      overlay(chart);
    }
  }

  function lastAt(column, idx) {
    let at = idx;
    while (at > 0 && column[at] == null) at -= 1;
    return column[at];
  }

  // The emphasized curve is drawn on a separate canvas, so that moving the pointer never draws all curves again.
  const mark = h("canvas", { "aria-hidden": "true" });
  mark.style.position = "absolute";
  mark.style.pointerEvents = "none";

  function overlay(chart) {
    const box = chart.over;
    if (mark.parentNode !== box) box.append(mark);
    const ratio = devicePixelRatio || 1;
    if (mark.width !== Math.round(box.clientWidth * ratio) || mark.height !== Math.round(box.clientHeight * ratio)) {
      mark.width = Math.round(box.clientWidth * ratio);
      mark.height = Math.round(box.clientHeight * ratio);
      mark.style.width = `${box.clientWidth}px`;
      mark.style.height = `${box.clientHeight}px`;
      mark.style.left = "0";
      mark.style.top = "0";
    }
    const context = mark.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, mark.width, mark.height);
    if (near < 1) return;
    context.strokeStyle = style("--text");
    context.lineWidth = 2.5;
    context.beginPath();
    let started = false;
    chart.data[near].forEach((value, at) => {
      if (value == null) return;
      const [x, y] = [chart.valToPos(chart.data[0][at], "x"), chart.valToPos(value, "y")];
      if (started) context.lineTo(x, y);
      else context.moveTo(x, y);
      started = true;
    });
    context.stroke();
  }

  function emphasize(chart) {
    if (near > 0) overlay(chart);
  }

  // An observer also reports the size at which it begins, for which nothing has to be drawn again.
  const resized = new ResizeObserver(() => {
    const width = Math.max(280, container.clientWidth - 16);
    if (plot && plot.width !== width) plot.setSize({ width, height: HEIGHT });
  });
  resized.observe(container);
  const themed = () => draw();
  window.addEventListener("theme", themed);
  draw();
  return {
    update(next) {
      const same = next.axis === current.axis && next.of === current.of && next.series.length === current.series.length
        && next.series.every((one, index) => one.name === current.series[index].name);
      current = next;
      if (same) plot.setData(values(next));
      else {
        near = -1;
        draw();
      }
    },
    destroy() {
      resized.disconnect();
      window.removeEventListener("theme", themed);
      plot?.destroy();
    },
  };
}

// The colors of a chart with their meaning; curves of many agents share the color of their algorithm.
export function keys(data) {
  const many = data.series.length > 12 || data.series.some((one) => one.low);
  const names = many ? [...new Set(data.series.map((one) => one.algorithm))] : data.series.map((one) => one.name);
  return h("ul", { class: "keys" }, names.map((name, index) => {
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = color(index);
    return h("li", {}, swatch, name || "all");
  }));
}

// Points of all agents, and a line through those of the champion and its ancestors.
export function scatter(container, entry) {
  const order = entry.x.map((value, index) => index).sort((one, other) => entry.x[one] - entry.x[other]);
  const pick = (column) => order.map((index) => column[index]);
  const draw = () => {
    replace(container);
    const point = { show: true, size: 4, width: 0, stroke: color(0), fill: color(0) };
    new uPlot({
      width: Math.max(240, container.clientWidth - 16),
      height: 170,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false } },
      axes: axes("seconds", ["time of generation", ""]),
      series: [{}, { paths: () => null, points: point }, { stroke: color(1), width: 2, spanGaps: true, points: { show: true, size: 5, fill: color(1) } }],
    }, [pick(entry.x), pick(entry.y), pick(entry.champion)], container).root.setAttribute("aria-hidden", "true");
  };
  draw();
  window.addEventListener("theme", draw);
  return () => window.removeEventListener("theme", draw);
}
