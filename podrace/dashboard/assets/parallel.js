// Draws parallel coordinates on a canvas: one vertical axis for each hyperparameter, and the score as the last one.

import { isDark } from "./chart.js";
import { h, replace } from "./dom.js";
import { number } from "./formats.js";

const HEIGHT = 320;
const [TOP, BOTTOM, SIDE, SPACE] = [44, 24, 70, 130];

// The share of an axis, from 0 to 1, at which a value lies.
export function share(axis, value) {
  if (axis.scale === "choice") {
    return axis.choices.length < 2 ? 0.5 : axis.choices.indexOf(String(value)) / (axis.choices.length - 1);
  }
  const move = { log: Math.log, reverse_log: (x) => -Math.log(1 - x) }[axis.scale] ?? ((x) => x);
  const [low, high, at] = [axis.low, axis.high, value].map(move);
  if (![low, high, at].every(Number.isFinite)) return axis.high > axis.low ? (value - axis.low) / (axis.high - axis.low) : 0.5;
  return high > low ? (at - low) / (high - low) : 0.5;
}

function shade(part) {
  const dark = isDark();
  const light = dark ? 50 + 30 * part : 80 - 50 * part;
  return `hsl(${230 - 190 * part} 75% ${light}%)`;
}

export function parallel(container, hyperparameters, rows, all) {
  const scores = all.map((row) => row.score);
  const axes = [...hyperparameters, { name: "score", scale: "linear", low: Math.min(...scores), high: Math.max(...scores) }];
  const width = Math.max(container.clientWidth - 4, 2 * SIDE + SPACE * (axes.length - 1));
  const ratio = devicePixelRatio || 1;
  const canvas = h("canvas", { width: Math.round(width * ratio), height: Math.round(HEIGHT * ratio), role: "img",
    "aria-label": `Parallel coordinates of ${rows.length} agents over ${hyperparameters.map((axis) => axis.name).join(", ")} and score; the table below has the values` });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${HEIGHT}px`;
  replace(container, canvas);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const x = (place) => SIDE + (place * (width - 2 * SIDE)) / (axes.length - 1);
  const y = (part) => HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
  context.lineWidth = rows.length > 200 ? 0.7 : 1.4;
  context.globalAlpha = rows.length > 200 ? 0.6 : 0.9;
  for (const row of [...rows].reverse()) {
    const values = [...row.values, row.score];
    context.strokeStyle = shade(share(axes.at(-1), row.score));
    context.beginPath();
    axes.forEach((axis, place) => {
      if (values[place] === null || values[place] === undefined) return;
      if (place === 0) context.moveTo(x(0), y(share(axis, values[0])));
      else context.lineTo(x(place), y(share(axis, values[place])));
    });
    context.stroke();
  }
  context.globalAlpha = 1;
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--text").trim();
  context.strokeStyle = context.fillStyle = ink;
  context.lineWidth = 1;
  context.font = "12px system-ui";
  context.textAlign = "center";
  axes.forEach((axis, place) => {
    context.beginPath();
    context.moveTo(x(place), TOP);
    context.lineTo(x(place), HEIGHT - BOTTOM);
    context.stroke();
    const [low, high] = axis.scale === "choice" ? [axis.choices[0], axis.choices.at(-1)] : [number(axis.low), number(axis.high)];
    context.fillText(axis.name, x(place), 14, SPACE);
    context.fillText(high, x(place), 32, SPACE);
    context.fillText(low, x(place), HEIGHT - 6, SPACE);
  });
}
