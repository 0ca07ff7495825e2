// Asks for a token of the mesh. It is sent once, and not kept in the page.

import { signIn } from "../api.js";
import { h, problem, replace } from "../dom.js";

export function signInPage(root, status, done) {
  document.title = "Sign in – podrace";
  status.idle();
  const token = h("input", { name: "token", type: "password", autocomplete: "off", spellcheck: "false", maxlength: "8192", required: true, size: "50", "aria-describedby": "token-help" });
  const button = h("button", { type: "submit", class: "main" }, "Sign in");
  const result = h("div", { "aria-live": "assertive" });
  replace(root, h("h1", {}, "Sign in"),
    h("form", { onsubmit: async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        await signIn(token.value);
        token.value = "";
        await done();
      } catch (error) {
        replace(result, problem(error));
        token.value = "";
        token.focus();
      } finally {
        button.disabled = false;
      }
    } },
    h("p", { id: "token-help" }, "Use a token of the mesh, which an operator makes with ", h("code", {}, "podrace token NAME"), ", or one of your identity provider if the mesh accepts it. You get the rights of that token."),
    h("div", { class: "row" }, h("label", {}, "Token", token), button)),
    result);
  token.focus();
  return () => {};
}
