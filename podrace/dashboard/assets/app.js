// Chooses the page by the part of the URL after `#`, and shows whether the page is live.

import { h, problem, replace } from "./dom.js";
import { compare } from "./pages/compare.js";
import { create } from "./pages/create.js";
import { list } from "./pages/list.js";
import { signInPage } from "./pages/sign_in.js";
import { tournament } from "./pages/tournament.js";
import { forget, load } from "./session.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let leave = () => {};
let shown = "";
let signingIn = false;

export function live(faults = {}) {
  const lines = Object.values(faults);
  if (lines.length) lost(`The mesh does not answer. Trying again… (${lines[0]})`);
  else state("live", "Live");
}

export function lost(why) {
  if (!signingIn) state("lost", why);
}

function idle() {
  state("idle", "Not signed in");
}

function state(name, text) {
  if (connection.dataset.state === name && connection.textContent === text) return;
  connection.dataset.state = name;
  connection.textContent = text;
}

// Pages return a function that stops what they have started.
const ROUTES = [
  [/^\/?$/, () => list],
  [/^\/new$/, () => create],
  [/^\/compare\/([\w.,-]+)$/, (ids) => (root, status) => compare(root, status, ids.split(","))],
  [/^\/t\/([\w.-]+)(?:\/([a-z]+))?(?:\/([\w.-]+))?$/, (id, tab, item) => (root, status) => tournament(root, status, id, tab ?? "board", item)],
];

async function route() {
  if (signingIn) return;
  const path = location.hash.slice(1);
  const found = ROUTES.map(([pattern, page]) => [pattern.exec(path), page]).find(([match]) => match);
  leave();
  leave = () => {};
  const root = h("div", {});
  replace(main, root);
  if (!found) {
    replace(root, h("h1", {}, "Not found"), h("p", {}, "There is no such page. ", h("a", { href: "#/" }, "All tournaments")));
    return;
  }
  const place = path.split("/").slice(0, 4).join("/");
  if (shown && place !== shown) main.focus();
  shown = place;
  window.scrollTo(0, 0);
  try {
    leave = found[1](...found[0].slice(1))(root, { live, lost });
  } catch (error) {
    replace(root, problem(error));
  }
}

// Replaces any page until a person has signed in. Then the requested page is shown.
function askToSignIn() {
  if (signingIn) return;
  signingIn = true;
  leave();
  leave = () => {};
  forget();
  const root = h("div", {});
  replace(main, root);
  document.getElementById("dialogs").replaceChildren();
  signInPage(root, { idle }, async () => {
    signingIn = await load();
    if (!signingIn) await route();
  });
}

const THEMES = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");

function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  themeButton.textContent = `Theme: ${name}`;
  localStorage.setItem("theme", name);
  window.dispatchEvent(new Event("theme"));
}

themeButton.addEventListener("click", () => {
  const now = THEMES.indexOf(localStorage.getItem("theme") ?? "system");
  setTheme(THEMES[(now + 1) % THEMES.length]);
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.dispatchEvent(new Event("theme")));
setTheme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
window.addEventListener("hashchange", route);
window.addEventListener("sign-in", askToSignIn);
route();
load().then((needed) => (needed ? askToSignIn() : null), () => {});
