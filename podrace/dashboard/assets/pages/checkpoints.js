// The checkpoints of the board with digest and size, and how to export them.

import { get } from "../api.js";
import { h, problem, replace, scroller, table } from "../dom.js";
import { bytes, score, short } from "../formats.js";
import { virtualTable } from "../virtual.js";

export function checkpoints(root, id) {
  const details = h("div", { "aria-live": "polite" });
  const rows = virtualTable("Checkpoints of the board", [
    { title: "Agent", cell: (one) => short(one.agent_id, id) },
    { title: "Rank", number: true, cell: (one) => `${one.rank}` },
    { title: "Score", number: true, cell: (one) => score(one.score, one.standard_error) },
    { title: "Digest of the manifest", cell: (one) => h("span", { class: "digest" }, one.candidate_id) },
    { title: "Parts", cell: (one) => h("button", { type: "button", "aria-label": `Show the parts of the checkpoint of ${short(one.agent_id, id)}`, onclick: () => show(one) }, "Show") },
  ], (offset, limit) => get(`tournaments/${id}/board`, { offset, limit }));
  replace(root, h("h2", {}, "Checkpoints"), rows.element, details);

  async function show(one) {
    replace(details, h("p", {}, "Reading the manifest…"));
    try {
      const found = await get(`tournaments/${id}/checkpoints/${one.candidate_id}`);
      replace(details, h("h2", {}, `Checkpoint of ${short(one.agent_id, id)}, rank ${one.rank}: ${bytes(found.size_bytes)}`),
        scroller("Parts", table("Parts", [
          { title: "Part", cell: (part) => part.name },
          { title: "Size", number: true, cell: (part) => bytes(part.size_bytes) },
          { title: "SHA-256", cell: (part) => h("span", { class: "digest" }, part.digest) },
        ], found.parts)),
        h("p", {}, "Export it as ONNX with:"), h("pre", { tabindex: "0" }, `podrace export ${one.candidate_id} --folder ${short(one.agent_id, id)}-policy`));
    } catch (error) {
      replace(details, problem(error));
    }
  }

  return { refresh: rows.refresh, close: () => {} };
}
