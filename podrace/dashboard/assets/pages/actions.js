// The buttons that change a tournament, each with a dialog that says what will happen.

import { post } from "../api.js";
import { h, problem, replace } from "../dom.js";
import { refusedChange, refusedCreation } from "../session.js";

const ENDED = ["completed", "cancelled", "failed"];

// Shows a dialog. `fields` are elements, `act` resolves when the change is done.
function ask(title, text, fields, label, danger, act) {
  const result = h("div", { "aria-live": "assertive" });
  const confirm = h("button", { type: "submit", class: danger ? "danger" : "main" }, label);
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
    h("form", { method: "dialog", onsubmit: async (event) => {
      event.preventDefault();
      confirm.disabled = true;
      replace(result, h("p", {}, "Working…"));
      try {
        await act();
        dialog.close();
      } catch (error) {
        replace(result, problem(error));
        confirm.disabled = false;
      }
    } }, h("h2", { id: "dialog-title" }, title), h("p", {}, text), fields, result,
    h("div", { class: "row" }, confirm, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"))));
  const opener = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (opener?.isConnected) opener.focus();
  });
  document.getElementById("dialogs").append(dialog);
  dialog.showModal();
}

function stop(entry) {
  const reason = h("input", { name: "reason", maxlength: "1000" });
  ask("Stop the tournament?", `The pods of ${entry.tournament_id} publish their checkpoints and exit. All results are kept, and it can be resumed.`,
    h("div", { class: "row" }, h("label", {}, "Reason (optional)", reason)), "Stop", true,
    () => post(`tournaments/${entry.tournament_id}/stop`, { reason: reason.value }));
}

function pause(entry) {
  const reason = h("input", { name: "reason", maxlength: "1000" });
  ask("Pause the tournament?", `The pods of ${entry.tournament_id} publish their checkpoints and exit, and its clock stands still until it is resumed.`,
    h("div", { class: "row" }, h("label", {}, "Reason (optional)", reason)), "Pause", false,
    () => post(`tournaments/${entry.tournament_id}/pause`, { reason: reason.value }));
}

function resume(entry) {
  ask("Resume the tournament?", `${entry.tournament_id} continues with the agents that it has.`, [], "Resume", false,
    () => post(`tournaments/${entry.tournament_id}/resume`, {}));
}

function scale(entry) {
  const field = (name, low) => h("input", { name, type: "number", min: String(low), max: "10000", value: entry.pool[name] ?? "" });
  const [least, most] = [field("minimum_pods", 0), field("maximum_pods", 1)];
  const given = (input) => (input.value === "" ? null : Number(input.value));
  ask("Scale the pool", "An empty field keeps its present value.",
    h("div", { class: "row" }, h("label", {}, "Pods, at least", least), h("label", {}, "Pods, at most", most)), "Scale", false,
    () => post(`tournaments/${entry.tournament_id}/scale`, { minimum_pods: given(least), maximum_pods: given(most) }));
}

function remove(entry) {
  const typed = h("input", { name: "confirm", autocomplete: "off", spellcheck: "false" });
  ask("Delete the tournament?", `This deletes ${entry.tournament_id} with the checkpoints of ${entry.agents} agents, its events and its logs. It cannot be restored. Type its id to confirm.`,
    h("div", { class: "row" }, h("label", {}, "Id of the tournament", typed)), "Delete", true, async () => {
      await post(`tournaments/${entry.tournament_id}/delete`, { confirm: typed.value.trim() });
      location.hash = "#/";
    });
}

function again(specification) {
  sessionStorage.setItem("specification", specification());
  location.hash = "#/new";
}

export function actions(entry, specification) {
  const ended = ENDED.includes(entry.state);
  const refused = refusedChange(entry);
  const template = () => h("button", { type: "button", onclick: () => again(specification) }, "Use as template");
  if (refused) {
    return h("div", { class: "row", role: "group", "aria-label": "Actions" }, h("p", { class: "quiet" }, refused), refusedCreation() ? null : template());
  }
  const button = (text, act, properties = {}) => h("button", { type: "button", onclick: () => act(entry), ...properties }, text);
  return h("div", { class: "row", role: "group", "aria-label": "Actions" },
    ended ? null : button("Scale…", scale),
    ended || entry.pause_reason || entry.state !== "running" ? null : button("Pause…", pause),
    ended ? null : button("Stop…", stop, { class: "danger" }),
    (ended && entry.state !== "completed") || (entry.state === "running" && entry.pause_reason) ? button("Resume…", resume) : null,
    template(),
    ended ? button("Delete…", remove, { class: "danger" }) : null);
}
