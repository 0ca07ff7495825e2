// The pods of a tournament, and why the pool grew, shrank or waits.

import { get } from "../api.js";
import { h, replace, scroller, table } from "../dom.js";
import { count, gpus, number, short, time } from "../formats.js";
import { virtualTable } from "../virtual.js";

export function pool(root, id) {
  const reasons = h("div", {});
  let seen = "";
  const rows = virtualTable("Pods", [
    { title: "Pod", cell: (one) => h("a", { href: `#/t/${id}/logs/${one.pod_id}`, "aria-label": `Log of ${short(one.pod_id, id)}` }, short(one.pod_id, id)) },
    { title: "Activity", cell: (one) => one.activity },
    { title: "Agent", cell: (one) => (one.agent_id ? h("a", { href: `#/t/${id}/lineage/${one.agent_id}` }, short(one.agent_id, id)) : "–") },
    { title: "Plane", cell: (one) => one.plane || "–" },
    { title: "Layout", cell: (one) => one.layout },
    { title: "Steps/s", number: true, cell: (one) => count(one.steps_per_second) },
    { title: "Steps of the agent", number: true, cell: (one) => count(one.environment_steps) },
    { title: "Training return", number: true, cell: (one) => number(one.training_return) },
    { title: "Last score", number: true, cell: (one) => number(one.score) },
    { title: "Policy lag", number: true, cell: (one) => number(one.policy_lag) },
    { title: "GPU use", kind: "gpus", cell: (one) => h("span", { title: one.gpus.map((gpu) => `${gpu.uuid}: ${gpus([gpu])}`).join("\n") }, gpus(one.gpus)) },
    { title: "Started", cell: (one) => time(one.start_time) },
    { title: "Waits for", cell: (one) => one.waits || "–" },
  ], async (offset, limit) => {
    const found = await get(`tournaments/${id}/pods`, { offset, limit });
    rows.element.classList.toggle("without-gpus", !found.gpus);
    const now = JSON.stringify(found.reasons);
    if (now !== seen) {
      seen = now;
      replace(reasons, found.reasons.length ? scroller("Changes of the pool", table("Changes of the pool, newest first", [
        { title: "Time", cell: (one) => time(one.time) },
        { title: "Kind", cell: (one) => one.kind },
        { title: "Pod", cell: (one) => (one.pod_id ? short(one.pod_id, id) : "–") },
        { title: "Why", cell: (one) => one.message },
      ], found.reasons)) : h("p", {}, "No changes yet."));
    }
    return found;
  });
  replace(root, h("h2", {}, "Pods"), rows.element, h("h2", {}, "Why the pool changed"), reasons);
  return { refresh: rows.refresh, close: () => {} };
}
