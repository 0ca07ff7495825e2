// Shows the ancestry of agents step by step: ancestors with what changed at each step, and children.

import { get } from "../api.js";
import { h, replace, scroller, table } from "../dom.js";
import { count, duration, number, score, short } from "../formats.js";

export function lineage(root, id, item) {
  const content = h("div", {});
  const input = h("input", { name: "agent", value: item ? short(item, id) : "", placeholder: "a12" });
  replace(root, h("form", { class: "row", onsubmit: (event) => {
    event.preventDefault();
    const wanted = input.value.trim();
    if (wanted) location.hash = `#/t/${id}/lineage/${wanted.startsWith(`${id}-`) ? wanted : `${id}-${wanted}`}`;
  } }, h("label", {}, "Agent", input), h("button", { type: "submit" }, "Show"), h("a", { class: "button", href: `#/t/${id}/lineage` }, "Champion")), content);

  const link = (agent) => h("a", { href: `#/t/${id}/lineage/${agent}` }, short(agent, id));

  function change(one) {
    return h("li", { class: "change" }, `${one.name}: `, h("del", {}, number(one.before)), " → ", h("ins", {}, number(one.after)));
  }

  function gain(step) {
    return step.gain === null ? "" : ` (${step.gain >= 0 ? "+" : ""}${number(step.gain)} against its parent)`;
  }

  function step(one, here) {
    return h("li", { class: here ? "here" : null, "aria-current": here ? "step" : null },
      h("strong", {}, link(one.agent_id)), ` ${one.algorithm}, ${one.origin}`,
      one.seat === null ? "" : `, seat ${one.seat}`, one.rung === null ? "" : `, rung ${one.rung}`,
      h("div", {}, `Score ${score(one.score)}${gain(one)}; ${count(one.lineage_steps)} steps with ancestors; ${duration(one.core_seconds)} of core time; ${one.submissions} evaluations`),
      one.changes.length ? h("ul", {}, one.changes.map(change)) : one.parents.length && !one.starts_elsewhere ? h("div", { class: "quiet" }, "Same hyperparameters as its parent") : null,
      one.starts_elsewhere ? h("div", { class: "quiet" }, `Starts from ${one.parents.join(", ")} of another tournament`) : null,
      one.reason ? h("div", { class: "quiet" }, one.reason) : null);
  }

  async function refresh() {
    const found = await get(`tournaments/${id}/lineage`, { agent: item });
    const agent = found.path.at(-1);
    replace(content,
      h("h2", {}, `From the first ancestor to ${short(agent.agent_id, id)}`),
      h("ol", { class: "path" }, found.path.map((one) => step(one, one.agent_id === agent.agent_id))),
      h("h2", {}, found.children.length ? `Children of ${short(agent.agent_id, id)}` : "No children"),
      found.children.length ? scroller("Children", table("Children", [
        { title: "Agent", cell: (one) => link(one.agent_id) },
        { title: "Origin", cell: (one) => one.origin },
        { title: "Score", number: true, cell: (one) => number(one.score) },
        { title: "Gain", number: true, cell: (one) => number(one.gain) },
        { title: "Core time", number: true, cell: (one) => duration(one.core_seconds) },
        { title: "What changed", cell: (one) => (one.changes.length ? h("ul", {}, one.changes.map(change)) : "nothing") },
      ], found.children)) : null,
      found.left_out ? h("p", { class: "quiet" }, `${found.left_out} further children are not shown.`) : null,
      h("h2", {}, "Hyperparameters"),
      table(`Hyperparameters of ${short(agent.agent_id, id)}`, [{ title: "Name", cell: ([name]) => name }, { title: "Value", cell: ([, value]) => number(value, 6) }], Object.entries(agent.hyperparameters)));
  }

  return { refresh, close: () => {} };
}
