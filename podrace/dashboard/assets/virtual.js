// A table with any number of rows, of which only the visible ones exist. Rows are fetched in pages.

import { h, kindOf, replace, tableRow } from "./dom.js";

const ROW = 32;
const PAGE = 100;
const MARGIN = 10;

// `fetchPage(offset, limit)` resolves to {entries, total}. Returns {element, refresh()}.
export function virtualTable(caption, columns, fetchPage) {
  let total = 0;
  let pages = new Map();
  let waiting = new Set();
  let generation = 0;
  const body = h("tbody", {});
  const element = h("div", { class: "scroll virtual", role: "region", "aria-label": caption, tabindex: "0", onscroll: () => draw() },
    h("table", { "aria-rowcount": "0" }, h("caption", {}, caption),
      h("thead", {}, h("tr", { "aria-rowindex": "1" }, columns.map((column) => h("th", { scope: "col", class: kindOf(column) }, column.title)))), body));

  async function need(page) {
    if (pages.has(page) || waiting.has(page)) return;
    const mine = generation;
    waiting.add(page);
    try {
      const found = await fetchPage(page * PAGE, PAGE);
      if (mine !== generation) return;
      pages.set(page, found.entries);
      total = found.total;
    } finally {
      if (mine === generation) waiting.delete(page);
    }
    draw();
  }

  function space(rows) {
    const row = h("tr", { class: "space", "aria-hidden": "true" }, h("td", { colspan: columns.length }));
    row.style.height = `${rows * ROW}px`;
    return row;
  }

  // Rows that stay visible while the table is scrolled are not made again.
  const built = new Map();

  function rowOf(place, entry) {
    if (built.get(place)?.entry !== entry) {
      if (built.size > 10 * PAGE) built.clear();
      built.set(place, { entry, row: tableRow(columns, entry, { "aria-rowindex": place + 2 }) });
    }
    return built.get(place).row;
  }

  function draw() {
    const first = Math.max(0, Math.floor(element.scrollTop / ROW) - MARGIN);
    const last = Math.min(total, Math.ceil((element.scrollTop + (element.clientHeight || 500)) / ROW) + MARGIN);
    const rows = [];
    for (let place = first; place < last; place += 1) {
      const page = Math.floor(place / PAGE);
      const entry = pages.get(page)?.[place % PAGE];
      if (!entry) need(page);
      rows.push(entry ? rowOf(place, entry) : h("tr", {}, h("td", { colspan: columns.length }, "…")));
    }
    element.querySelector("table").setAttribute("aria-rowcount", String(total + 1));
    replace(body, first ? space(first) : null, rows, last < total ? space(total - last) : null,
      total ? null : h("tr", {}, h("td", { colspan: columns.length }, "No entries yet.")));
  }

  // Fetches the visible pages again; the rows stay until the new ones are there.
  async function refresh() {
    const visible = Math.floor(Math.floor(element.scrollTop / ROW) / PAGE);
    const mine = (generation += 1);
    waiting = new Set();
    const found = await fetchPage(visible * PAGE, PAGE);
    if (mine !== generation) return;
    pages = new Map([[visible, found.entries]]);
    total = found.total;
    draw();
  }

  return { element, refresh };
}
