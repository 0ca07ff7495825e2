// Who uses the page, and what the mesh lets them do. The mesh decides; the page only shows it.

import { get, post } from "./api.js";
import { h, replace } from "./dom.js";

let caller = null;
let signsIn = false;

// Asks who uses the page. Returns whether a person has to sign in first.
export async function load() {
  const found = await get("session");
  caller = found.caller;
  signsIn = found.sign_in;
  show();
  window.dispatchEvent(new Event("session"));
  return signsIn && !caller;
}

function show() {
  const role = ["operator", "user", "viewer"].find((name) => caller?.roles.includes(name)) ?? caller?.roles[0] ?? "no role";
  const name = caller && (caller.namespace ? `${caller.namespace}/${caller.name}` : caller.name);
  replace(document.getElementById("person"),
    caller ? h("span", { class: "quiet" }, `${name}, ${role}`) : null,
    caller && signsIn ? h("button", { type: "button", id: "sign-out", onclick: signOut }, "Sign out") : null);
  document.getElementById("new").hidden = Boolean(refusedCreation());
}

async function signOut() {
  await post("sign-out", {}).catch(() => {});
  location.hash = "#/";
  location.reload();
}

export function forget() {
  caller = null;
  show();
}

// Returns why the person may start no tournament; empty if nothing is known against it.
export function refusedCreation() {
  if (!caller || caller.roles.includes("user")) return "";
  return `Starting a tournament needs the role user; ${caller.name} has ${caller.roles.join(", ") || "none"}.`;
}

// Returns why the person may not change a tournament; empty if nothing is known against it.
export function refusedChange(entry) {
  if (!caller || caller.roles.includes("operator")) return "";
  if (!caller.roles.includes("user")) return "You may read this tournament. Changing it needs the role user.";
  if (caller.tournament_id) return caller.tournament_id === entry.tournament_id ? "" : "You may not change this tournament.";
  const namespace = caller.namespace === "*" ? "" : caller.namespace;
  if (entry.owner === caller.name && entry.namespace === namespace) return "";
  return `You may read this tournament. Only its owner ${entry.owner} or an operator may change it.`;
}
