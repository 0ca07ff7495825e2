// Starts a tournament from a specification, which the orchestrator checks first.

import { get, post } from "../api.js";
import { h, problem, replace } from "../dom.js";
import { refusedCreation } from "../session.js";

const EXAMPLE = `name = "cartpole"

[environment]
id = "CartPole-v1"
count = 16

[algorithms.ppo]

[objective]
target_return = 475.0
wall_clock_duration = "5m"
`;

export function create(root, status) {
  document.title = "New tournament – podrace";
  const text = h("textarea", { id: "specification", rows: "22", spellcheck: "false", "aria-describedby": "specification-help", value: sessionStorage.getItem("specification") ?? EXAMPLE });
  sessionStorage.removeItem("specification");
  const result = h("div", { "aria-live": "polite" });
  const check = h("button", { type: "button", onclick: () => run(checked) }, "Check");
  const start = h("button", { type: "button", class: "main", onclick: () => run(started) }, "Start tournament");
  // A repeat after a lost answer must not start a second tournament.
  let requestId = crypto.randomUUID ? crypto.randomUUID() : `${Date.now()}-${Math.random()}`;
  text.addEventListener("input", () => {
    requestId = `${Date.now()}-${Math.random()}`;
  });
  replace(root, h("h1", {}, "New tournament"),
    h("label", { for: "specification" }, "Specification (TOML)"),
    h("p", { id: "specification-help", class: "quiet" }, "The same text as a specification file of podrace train. Keys that are left out get their defaults. Checking makes the environment and can take a minute."),
    text, h("div", { class: "row" }, check, start), result);

  async function run(action) {
    check.disabled = start.disabled = true;
    replace(result, h("p", {}, "Checking…"));
    try {
      await action();
      status.live();
    } catch (error) {
      replace(result, problem(error));
    } finally {
      check.disabled = start.disabled = false;
    }
  }

  async function checked() {
    const found = await post("check", { specification: text.value });
    replace(result, h("div", { class: "notice" }, h("p", {}, "The specification can be used."),
      found.unchecked.length ? h("ul", {}, found.unchecked.map((line) => h("li", {}, line))) : null,
      h("details", {}, h("summary", {}, "With all defaults"), h("pre", { tabindex: "0" }, found.specification))));
  }

  async function started() {
    const created = await post("tournaments", { specification: text.value, request_id: requestId });
    location.hash = `#/t/${created.tournament_id}`;
  }

  function allow() {
    const refused = refusedCreation();
    check.disabled = start.disabled = Boolean(refused);
    if (refused) replace(result, h("p", { class: "notice" }, refused));
  }

  allow();
  window.addEventListener("session", allow);
  get("session").then(() => status.live(), (error) => status.lost(error.message));
  return () => window.removeEventListener("session", allow);
}
