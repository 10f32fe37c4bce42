// What happened: nodes that came and went, jobs and their coordinators, and what people did here.

import { h, segments } from "../dom.js";
import { clock, day } from "../format.js";
import { read, watch } from "../live.js";

const LOOKS = { joined: "done", returned: "done", opened: "done", died: "failed", trouble: "failed", task_failed: "failed", left: "stopped", closed: "waiting", takeover: "waiting", submitted: "running", retried: "running", ended: "done" };
const KINDS = { all: () => true, nodes: (event) => event.node, jobs: (event) => event.job, people: (event) => event.user };
const MOST = 1000;
const SHOWN = 400;
let chosen = "all";
let words = "";

export default {
  title: () => "Events",
  show(main) {
    const happened = new Map();
    let said = [];
    let left = false;
    const list = h("ol", { class: "timeline" });
    const none = h("p", { class: "empty" }, "Nothing such has happened.");
    const note = h("p", { class: "quiet small" }, "Each node remembers what it noticed since it started, and all that are here are asked; times are by their clocks. What people did is what they did at this node.");
    const search = h("input", { type: "search", placeholder: "Name, or time: 03:12", "aria-label": "Filter events", value: words, oninput: () => { words = search.value; draw(); } });
    const which = segments("Which events", [["all", "All"], ["nodes", "Nodes"], ["jobs", "Jobs"], ["people", "People"]], chosen, (next) => { chosen = next; draw(); });
    main.append(h("div", { class: "head" }, h("h1", {}, "Events")), h("div", { class: "controls" }, search, which), h("section", { class: "card" }, none, list), note);

    function draw() {
      const word = words.trim().toLowerCase();
      const matches = (event) => KINDS[chosen](event) && (!word || `${clock(event.at_ms)} ${event.name} ${event.text}`.toLowerCase().includes(word));
      const all = [...happened.values(), ...said].filter(matches).sort((a, b) => b.at_ms - a.at_ms).slice(0, SHOWN);
      none.hidden = all.length > 0;
      list.replaceChildren(...all.map(line));
    }

    function take(events) {
      if (left) return;
      for (const event of events) {
        const subject = event.node ?? event.job;
        // Of what several noticed, the first word may have been told already, and be out of the window.
        const known = [...happened.values()].find((other) => other.kind === event.kind && (other.node ?? other.job) === subject && other.at_ms < event.at_ms && event.at_ms - other.at_ms < 60000 && event.noticed_by.every((node) => other.noticed_by.includes(node)));
        if (!known) happened.set(`${event.kind} ${subject} ${event.at_ms}`, event);
      }
      for (const key of happened.keys()) { if (happened.size <= MOST) break; happened.delete(key); }
      draw();
    }

    // All of it once, and again after the connection was lost; then what was noticed lately.
    const whole = () => read(`/v1/events?limit=${MOST}`).then(take, () => {});
    let seen = 0;
    const stops = [
      watch("/v1/events?within_s=120", (body, status) => {
        if (status !== 200) { seen = 0; return; }
        if (Date.now() - seen > 60000) whole();
        seen = Date.now();
        take(body);
      }),
      // For the node's owner.
      watch("/v1/audit?limit=200", (body, status) => {
        said = status === 200 ? body.filter((line) => line.what !== "submit" || line.refused).map(deed) : [];
        draw();
      }),
    ];
    return () => { left = true; stops.forEach((stop) => stop()); };
  },
};

function line(event) {
  const isBad = event.kind === "ended" && event.text !== "is done";
  const subject = event.job ? h("a", { href: `#/job/${event.job}` }, event.name) : h("strong", {}, event.name);
  const by = event.noticed_by?.length && event.node && event.kind !== "joined" ? h("span", { class: "quiet small" }, ` noticed by ${event.noticed_by.join(", ")}`) : null;
  return h("li", {}, h("time", { datetime: new Date(event.at_ms).toISOString() }, h("span", {}, day(event.at_ms), " "), clock(event.at_ms)), h("i", { class: isBad ? "failed" : LOOKS[event.kind] ?? "stopped" }), h("p", {}, subject, ` ${event.text}`, by));
}

/** A line of the audit log as an event. */
function deed({ at_ms, user, what, about, node, refused }) {
  return { at_ms, user, name: user, kind: refused ? "task_failed" : "said", text: `${what.replaceAll("_", " ")}${about ? ` ${about}` : ""} at ${node}${refused ? `: refused, ${refused}` : ""}` };
}
