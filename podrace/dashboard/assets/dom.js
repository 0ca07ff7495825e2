// Builds elements. Text is always inserted as text, never as HTML.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
}

export function problem(error) {
  const details = error.details ?? [];
  return h("div", { class: "problem", role: "alert" }, error.message, details.length ? h("ul", {}, details.map((line) => h("li", {}, line))) : null);
}

// A table. `columns` are {title, number, cell(row)}; a cell is text or an element.
export function table(caption, columns, rows, properties = {}) {
  return h("table", properties,
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: kindOf(column) }, column.title)))),
    h("tbody", {}, rows.map((row) => tableRow(columns, row))));
}

// The class of the cells of a column.
export function kindOf(column) {
  return column.kind ?? (column.number ? "number" : null);
}

export function tableRow(columns, row, properties = {}) {
  return h("tr", properties, columns.map((column, place) => {
    const content = column.cell(row);
    return h(place === 0 ? "th" : "td", { scope: place === 0 ? "row" : null, class: kindOf(column) }, content ?? "–");
  }));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function select(label, name, options, value, changed) {
  return h("label", {}, label, h("select", { name, onchange: (event) => changed(event.target.value) },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text))));
}

export function scroller(label, content) {
  return h("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, content);
}
