// The log of a pod or of a service: its last lines, and those that are written meanwhile.

import { follow, get } from "../api.js";
import { h, replace, select } from "../dom.js";
import { count, short } from "../formats.js";

const MOST_LINES = 5000;
const LINES = [["50", "50"], ["200", "200"], ["2000", "2,000"]];

export function logs(root, id, item) {
  let names = "";
  let lines = "200";
  let unseen = 0;
  let leave = () => {};
  const choice = h("div", {});
  const note = h("p", { class: "quiet", role: "status" });
  const text = h("pre", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": item ? `Log of ${short(item, id)}` : "Log" });
  const keep = h("input", { type: "checkbox", name: "follow", checked: true, onchange: () => toEnd() });
  replace(root, h("h2", {}, "Logs"),
    h("div", { class: "row" }, choice,
      select("Last lines", "lines", LINES, lines, (value) => {
        lines = value;
        open();
      }),
      h("label", { class: "check" }, keep, "Follow: stay at the newest line")),
    note, item ? text : null);

  function toEnd() {
    if (keep.checked) text.scrollTop = text.scrollHeight;
  }

  function add(part) {
    if (part.begins) {
      replace(text);
      unseen = 0;
    }
    unseen += part.left_out;
    if (part.left_out) text.append(`… ${count(part.left_out)} lines are left out here\n`);
    // One node for each line, so that the oldest ones can be removed.
    const added = document.createDocumentFragment();
    for (const line of part.lines) added.append(`${line}\n`);
    text.append(added);
    for (let surplus = text.childNodes.length - MOST_LINES; surplus > 0; surplus -= 1) {
      text.firstChild.remove();
      unseen += 1;
    }
    const before = unseen ? `, ${count(unseen)} earlier ones are not shown` : "";
    replace(note, text.childNodes.length ? `${count(text.childNodes.length)} lines${before}` : "The log is empty.");
    toEnd();
  }

  function open() {
    leave();
    if (!item) return;
    leave = follow(`tournaments/${id}/logs/${item}/stream?lines=${lines}`, add, (why) => {
      // The stream does not say why it is refused; the list of logs does.
      get(`tournaments/${id}/logs`).then((found) => replace(note, found.logs.includes(item) ? why : `There is no log of ${item}.`), () => replace(note, why));
    });
  }

  async function refresh() {
    const found = (await get(`tournaments/${id}/logs`)).logs;
    if (JSON.stringify(found) === names) return;
    names = JSON.stringify(found);
    if (!found.length) {
      replace(note, "There are no logs of this tournament.");
      return;
    }
    const known = item && !found.includes(item) ? [item, ...found] : found;
    replace(choice, select("Log of", "log", [...(item ? [] : [["", "choose a pod or a service"]]), ...known.map((name) => [name, short(name, id)])], item ?? "", (value) => {
      if (value) location.hash = `#/t/${id}/logs/${value}`;
    }));
    if (!item) replace(note, "Choose a pod or a service.");
  }

  open();
  return { refresh, close: () => leave() };
}
