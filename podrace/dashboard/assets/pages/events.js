// The events of a tournament, with filters.

import { get } from "../api.js";
import { h, replace, scroller, select, table } from "../dom.js";
import { short, time } from "../formats.js";

const PAGE = 200;

export function events(root, id) {
  const asked = { kind: "", agent: "", pod: "", words: "" };
  const kinds = h("div", {});
  const rows = h("div", {});
  const note = h("p", { class: "quiet", role: "status" });
  let known = "";
  let older = [];
  const field = (label, name, properties) => h("label", {}, label, h("input", { name, ...properties, oninput: (event) => {
    asked[name] = event.target.value.trim();
    older = [];
    refresh();
  } }));
  const more = h("button", { type: "button", onclick: async () => {
    const found = await get(`tournaments/${id}/events`, { ...asked, limit: PAGE, before: older.at(-1)?.sequence ?? last });
    older.push(...found.entries);
    await refresh();
  } }, "Show older events");
  let last = 0;
  replace(root, h("h2", {}, "Events"),
    h("div", { class: "row" }, kinds, field("Agent", "agent", { placeholder: "a7" }), field("Pod", "pod", { placeholder: "p2" }), field("Message contains", "words", { type: "search", maxlength: "200" })),
    note, rows, h("div", { class: "row" }, more));

  async function refresh() {
    const mine = JSON.stringify(asked);
    const found = await get(`tournaments/${id}/events`, { ...asked, limit: PAGE });
    if (mine !== JSON.stringify(asked)) return;
    if (JSON.stringify(found.kinds) !== known) {
      known = JSON.stringify(found.kinds);
      replace(kinds, select("Kind", "kind", [["", "all kinds"], ...found.kinds.map((kind) => [kind, kind])], asked.kind, (value) => {
        asked.kind = value;
        older = [];
        refresh();
      }));
    }
    last = found.entries.at(-1)?.sequence ?? 0;
    more.disabled = (older.length ? older : found.entries).length < PAGE || older.length % PAGE !== 0;
    const entries = [...found.entries, ...older.filter((one) => one.sequence < last)];
    replace(note, `${entries.length} shown of ${found.known} that the dashboard keeps`);
    replace(rows, scroller("Events", table("Events, newest first", [
      { title: "Time", cell: (one) => time(one.time) },
      { title: "Kind", cell: (one) => one.kind },
      { title: "Agent", cell: (one) => (one.agent_id ? h("a", { href: `#/t/${id}/lineage/${one.agent_id}` }, short(one.agent_id, id)) : "–") },
      { title: "Pod", cell: (one) => (one.pod_id ? short(one.pod_id, id) : "–") },
      { title: "What happened and why", cell: (one) => one.message },
    ], entries)));
  }

  return { refresh, close: () => {} };
}
