// What happened: nodes that came and went, jobs and their coordinators, and what people did here.

import { h, segments } from "../dom.js";
import { clock, day } from "../format.js";
import { watch } from "../live.js";

const LOOKS = { joined: "done", returned: "done", opened: "done", died: "failed", trouble: "failed", task_failed: "failed", left: "stopped", closed: "waiting", takeover: "waiting", submitted: "running", retried: "running", ended: "done" };
const MOST = 400;
let chosen = "all";

export default {
  title: () => "Events",
  show(main) {
    let [happened, said] = [[], []];
    const list = h("ol", { class: "timeline" });
    const none = h("p", { class: "empty" }, "Nothing has happened yet.");
    const note = h("p", { class: "quiet small" }, "Nodes are watched since nodectl ui was started; of jobs their beginnings and ends are known from before. What people did is what they did at this node.");
    main.append(h("div", { class: "head" }, h("h1", {}, "Events")), h("div", { class: "controls" }, segments("Which events", [["all", "All"], ["nodes", "Nodes"], ["jobs", "Jobs"], ["people", "People"]], chosen, (next) => { chosen = next; draw(); })), h("section", { class: "card" }, none, list), note);

    function draw() {
      const kinds = { nodes: (event) => !event.job && !event.user, jobs: (event) => event.job && !event.user, people: (event) => event.user, all: () => true };
      const all = [...happened, ...said].filter(kinds[chosen]).sort((a, b) => b.at_ms - a.at_ms).slice(0, MOST);
      none.hidden = all.length > 0;
      list.replaceChildren(...all.map((event) => {
        const look = event.kind === "ended" && !event.text.startsWith("done") ? "failed" : LOOKS[event.kind] ?? "stopped";
        const subject = event.job ? h("a", { href: `#/job/${event.job}` }, event.subject) : h("strong", {}, event.subject);
        return h("li", {}, h("time", { datetime: new Date(event.at_ms).toISOString() }, h("span", {}, day(event.at_ms), " "), clock(event.at_ms)), h("i", { class: look }), h("p", {}, subject, " ", event.text));
      }));
    }
    const stops = [
      watch("/page/events", (body) => { happened = body; draw(); }),
      // For the node's owner.
      watch("/v1/audit?limit=200", (body, status) => {
        said = status === 200 ? body.filter((line) => line.what !== "submit" || line.refused).map((line) => ({ at_ms: line.at_ms, user: line.user, kind: line.refused ? "task_failed" : "said", subject: line.user, text: `${line.what.replaceAll("_", " ")}${line.about ? ` ${line.about}` : ""} at ${line.node}${line.refused ? `: refused, ${line.refused}` : ""}` })) : [];
        draw();
      }),
    ];
    return () => stops.forEach((stop) => stop());
  },
};
