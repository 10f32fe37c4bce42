// What changes: one connection to the server, which tells whatever is watched. A page that nobody
// looks at has none (browsers allow six for all pages together), and asks anew when it is looked at.

const watched = new Map();
const known = new Map();
const listeners = new Set();
let source = null;
let open = "";
let planned = false;
let state = "waiting";

/** Calls `tell(body, status)` with the answer of a path now and whenever it changes. */
export function watch(path, tell) {
  if (!watched.has(path)) watched.set(path, new Set());
  watched.get(path).add(tell);
  const last = known.get(path);
  if (last) tell(last.body, last.status);
  plan();
  return () => {
    watched.get(path)?.delete(tell);
    if (!watched.get(path)?.size) { watched.delete(path); known.delete(path); }
    plan();
  };
}

/** Tells "live", "lost" or "waiting". */
export function onState(tell) { listeners.add(tell); tell(state); }

function become(next) {
  if (next === state) return;
  state = next;
  listeners.forEach((tell) => tell(next));
}

function plan() {
  if (planned) return;
  planned = true;
  queueMicrotask(() => { planned = false; connect(); });
}

function connect(anew = false) {
  const paths = document.hidden ? [] : [...watched.keys()].sort();
  const address = paths.length ? `/live?${paths.map((path) => `p=${encodeURIComponent(path)}`).join("&")}` : "";
  if (address === open && !anew) return;
  source?.close();
  open = address;
  source = null;
  if (!address) return;
  const own = new EventSource(address);
  source = own;
  own.onopen = () => become("live");
  own.onmessage = (event) => {
    const { path, status, change, ...told } = JSON.parse(event.data);
    const body = change ? applied(known.get(path)?.body ?? [], change) : told.body;
    become("live");
    known.set(path, { status, body });
    watched.get(path)?.forEach((tell) => tell(body, status));
  };
  own.onerror = () => {
    if (own !== source) return;
    become("lost");
    // The browser tries again by itself unless it was refused.
    if (own.readyState === EventSource.CLOSED) setTimeout(() => { if (own === source) connect(true); }, 1500);
  };
}

/** A list of things with ids after a change: what is known keeps its place, what is new is last. */
function applied(list, { set, gone }) {
  const left = new Map(list.map((one) => [one.id, one]));
  gone.forEach((id) => left.delete(id));
  set.forEach((one) => left.set(one.id, one));
  return [...left.values()];
}

document.addEventListener("visibilitychange", plan);

/** Reads a path once; throws what the node says. */
export async function read(path, signal) {
  const answer = await fetch(path, { signal, headers: { accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? answer.statusText);
  return body;
}

/** Asks for a change; throws what the node says. */
export async function change(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(said.error ?? answer.statusText);
  return said;
}
