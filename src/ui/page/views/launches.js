// What was launched from this machine: nodes asked for, to come and there, over time, and why.

import { chart } from "../charts.js";
import { card, figures, h, tag } from "../dom.js";
import { count, moment, span } from "../format.js";
import { watch } from "../live.js";

const KINDS = { hosts: "hosts, by ssh", slurm: "SLURM", condor: "HTCondor" };
const DECISIONS = 40;

export default {
  title: () => "Launches",
  show(main) {
    const list = h("div", { class: "stack" });
    const none = h("p", { class: "empty" }, "Nothing is launched from this machine. The command nodectl up starts nodes elsewhere: on hosts, in SLURM, in HTCondor.");
    main.append(h("div", { class: "head" }, h("h1", {}, "Launches")), none, list);
    const shown = new Map();
    const stop = watch("/v1/launches", (body, status) => {
      if (status !== 200) return;
      none.hidden = body.length > 0;
      const present = new Set(body.map((launch) => launch.id));
      for (const [id, one] of shown) if (!present.has(id)) { one.end(); one.element.remove(); shown.delete(id); }
      for (const launch of body) {
        if (!shown.has(launch.id)) { shown.set(launch.id, launchCard()); list.prepend(shown.get(launch.id).element); }
        shown.get(launch.id).update(launch);
      }
    });
    return () => { stop(); shown.forEach((one) => one.end()); };
  },
};

/** One launch. Gives { element, update(launch), end() }. */
function launchCard() {
  const title = h("h2");
  const state = h("span");
  const numbers = h("div");
  const over = chart({ label: "Nodes over time", series: ["asked for", "members", "tasks that wait"], colours: ["--series-4", "--series-1", "--series-2"], time: true, height: 200, format: count });
  const decided = h("ol", { class: "timeline" });
  const element = h("section", { class: "card" }, h("header", {}, title, state), numbers, over.element, decided);
  let before = 0;
  function update(launch) {
    title.textContent = `${launch.source} (${KINDS[launch.kind] ?? launch.kind})`;
    const last = launch.looks.at(-1);
    const isTended = launch.is_tended;
    state.replaceChildren(isTended === undefined ? "" : isTended ? tag("running", "elastic") : tag("dead", "its launcher has ended"));
    numbers.replaceChildren(figures([
      last ? ["Asked for", count(last.asked)] : null,
      last ? ["To come", count(last.pending)] : null,
      ["Members", count(launch.running)],
      last ? ["Node hours", launch.node_hours < 10 ? launch.node_hours.toFixed(2) : count(launch.node_hours)] : null,
      ["Since", moment(launch.started_ms), span((Date.now() - launch.started_ms) / 1000)],
    ]));
    const newest = last?.at_ms ?? 0;
    over.element.hidden = launch.looks.length < 2;
    if (newest === before) return;
    before = newest;
    // What was seen held until the next look.
    const steps = launch.looks.flatMap((look, at) => (at ? [{ ...launch.looks[at - 1], at_ms: look.at_ms - 1 }, look] : [look]));
    over.update([steps.map((look) => look.at_ms / 1000), steps.map((look) => look.asked), steps.map((look) => look.running), steps.map((look) => look.waiting)]);
    const decisions = launch.looks.filter((look) => look.submitted || look.released).slice(-DECISIONS).reverse();
    decided.replaceChildren(...decisions.map((look) => h("li", {},
      h("time", { datetime: new Date(look.at_ms).toISOString() }, moment(look.at_ms)),
      h("i", { class: look.submitted ? "running" : "stopped" }),
      h("p", {}, look.submitted ? `Asked for ${count(look.submitted)} more` : `Gave ${count(look.released)} back`, look.why ? h("span", { class: "quiet" }, `: ${look.why}`) : null))));
  }
  return { element, update, end: () => over.end() };
}
