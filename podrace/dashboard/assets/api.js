// Calls the gateway, and follows its streams of events.

let change = "";

// Announces that the session has ended, or that there is none yet.
function ended() {
  change = "";
  window.dispatchEvent(new Event("sign-in"));
}

export class Refused extends Error {
  constructor(status, body) {
    super(body.error ?? `the dashboard answered with status ${status}`);
    this.status = status;
    this.code = body.code ?? "";
    this.details = body.details ?? [];
  }
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin" });
  } catch {
    throw new Refused(0, { error: "the dashboard does not answer; the page tries again by itself" });
  }
  const body = await response.json().catch(() => ({}));
  if (response.status === 401 && body.code === "SIGN_IN") ended();
  if (!response.ok) throw new Refused(response.status, body);
  return body;
}

export function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return send(`/api/${path}${text ? `?${text}` : ""}`, {});
}

export async function post(path, body) {
  if (!change) change = (await get("session")).change;
  const headers = { "Content-Type": "application/json", "X-Podrace-Change": change };
  return send(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
}

export async function signIn(token) {
  await send("/api/sign-in", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
  change = "";
}

const SILENT_MILLISECONDS = 12000;
const RETRY_MILLISECONDS = 1500;

// Follows a stream until the returned function is called. `receive` gets each event, `lost` why there is none.
export function follow(path, receive, lost) {
  let source = null;
  let silent = 0;
  let retry = 0;
  let closed = false;
  const open = () => {
    clearTimeout(retry);
    if (closed) return;
    source?.close();
    source = new EventSource(`/api/${path}`);
    watch();
    source.onmessage = (event) => {
      watch();
      receive(JSON.parse(event.data));
    };
    source.onerror = () => {
      lost("Connection to the dashboard lost. Trying again…");
      source.close();
      again();
      // The stream does not say why it is refused.
      get("session").then((found) => {
        if (found.sign_in && !found.caller && !closed) ended();
      }, () => {});
    };
  };
  const again = () => {
    clearTimeout(retry);
    if (!closed) retry = setTimeout(open, RETRY_MILLISECONDS);
  };
  const watch = () => {
    clearTimeout(silent);
    silent = setTimeout(() => {
      lost("The dashboard does not answer. Trying again…");
      open();
    }, SILENT_MILLISECONDS);
  };
  open();
  return () => {
    closed = true;
    clearTimeout(silent);
    clearTimeout(retry);
    source?.close();
  };
}
