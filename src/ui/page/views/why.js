// Why something is where it is: the node's own sentences, and which condition keeps which node out.

import { card, choice, h, s, tag, wide } from "../dom.js";
import { watch } from "../live.js";
import { counted } from "../format.js";
import { isEnded } from "./jobs.js";

export default {
  title: () => "Why",
  show(main, [job = "", task = ""]) {
    const body = h("div", { class: "stack" });
    const picks = h("div", { class: "controls" });
    const number = h("input", { type: "number", min: 0, value: task, placeholder: "all", onchange: () => { location.hash = `#/why/${job}${number.value === "" ? "" : `/${number.value}`}`; } });
    main.append(h("div", { class: "head" }, h("h1", {}, "Why is it where it is?")), picks, body);
    const stops = [watch("/v1/jobs", (jobs, status) => {
      if (status !== 200 || picks.contains(document.activeElement)) return;
      const listed = [...jobs].reverse().filter((one) => !isEnded(one) || one.id === job);
      listed.push(...[...jobs].reverse().filter((one) => isEnded(one) && one.id !== job).slice(0, 20));
      picks.replaceChildren(choice("About", [["", "the cluster"], ...listed.map((one) => [one.id, `${one.name} (${one.phase})`])], job, (next) => { location.hash = next ? `#/why/${next}` : "#/why"; }), job ? h("label", {}, "task", number) : "");
    })];
    stops.push(job ? explain(body, job, task) : doctor(body));
    return () => stops.forEach((stop) => stop());
  },
};

/** The same as a tab of a job. */
export function jobWhy(place, job) {
  const body = h("div", { class: "stack" });
  place.replaceChildren(body);
  return explain(body, job.id, "");
}

function explain(place, job, task) {
  place.replaceChildren(h("p", { class: "empty" }, "Asking…"));
  return watch(`/v1/jobs/${encodeURIComponent(job)}/explain${task === "" ? "" : `?task=${encodeURIComponent(task)}`}`, (body, status) => {
    if (status !== 200) { place.replaceChildren(h("p", { class: "note bad" }, body.error ?? "The node does not say.")); return; }
    const about = body.lines.map((line, at) => node(line, body.reasons[at].reason));
    const nodes = about.filter(Boolean);
    const sentences = body.lines.map((line, at) => h("li", { class: at === 0 ? "lead" : { yes: "yes", no: "no", away: "no" }[about[at]?.kind] ?? null }, at === 0 ? capital(line) : line));
    place.replaceChildren(...[
      card("In words", h("ul", { class: "sentences" }, sentences)),
      nodes.length ? card("Which condition keeps which node out", wide(picture(nodes)), h("p", { class: "quiet small" }, `${nodes.filter((one) => one.kind === "yes").length} of ${counted(nodes.length, "node")} can run it.`)) : null,
    ].filter(Boolean));
  });
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** What a line says of a node, if it is about whether one can run the job. */
function node(line, word) {
  if (!word.startsWith("node_")) return null;
  const [, name, said] = /^(.+?): (?:cannot take it: )?(.*)$/s.exec(line) ?? [null, "", line];
  if (word !== "node_suits") return { kind: word === "node_unreachable" || word === "node_unknown" ? "away" : "no", name, reason: said.startsWith(`${name} `) ? said.slice(name.length + 1) : said, detail: "" };
  const [, slots, running] = /^(\d+) slots for it; runs (\d+),/.exec(said) ?? [null, "", ""];
  return slots === "0" ? { kind: "no", name, reason: "has no slot for it", detail: "" } : { kind: "yes", name, reason: "can run it", detail: slots ? `${running} of ${slots} slots in use` : "" };
}

/** Nodes on the left, conditions on the right, a line from each node to its own. */
function picture(nodes) {
  const shown = nodes.slice(0, 40);
  const reasons = [...new Map(shown.map((one) => [one.reason, one.kind])).entries()].sort(([, a], [, b]) => Number(b === "yes") - Number(a === "yes"));
  const [row, width] = [46, 880];
  const height = Math.max(shown.length, reasons.length) * row + 8;
  const middle = (at, of) => ((at + .5) * (height - 8)) / of + 4;
  const parts = [];
  shown.forEach((one, at) => {
    const [from, to] = [middle(at, shown.length), middle(reasons.findIndex(([reason]) => reason === one.reason), reasons.length)];
    parts.push(s("path", { class: one.kind, d: `M200 ${from}C330 ${from} 330 ${to} 450 ${to}` }));
    parts.push(s("rect", { x: 1, y: from - 18, width: 199, height: 36, rx: 6 }));
    parts.push(s("text", { x: 12, y: one.detail ? from - 2 : from + 5 }, cut(one.name, 24)));
    if (one.detail) parts.push(s("text", { x: 12, y: from + 12, class: "quiet" }, one.detail));
  });
  reasons.forEach(([reason, kind], at) => {
    const y = middle(at, reasons.length);
    const lines = wrapped(reason, 62).slice(0, 2);
    parts.push(s("rect", { x: 450, y: y - 18, width: 429, height: 36, rx: 6, class: kind }));
    lines.forEach((text, line) => parts.push(s("text", { x: 462, y: y + 5 + (line - (lines.length - 1) / 2) * 15 }, text)));
  });
  return s("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": shown.map((one) => `${one.name}: ${one.reason}`).join("; ") }, parts);
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function wrapped(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (`${lines.at(-1)} ${word}`.length > most && lines.at(-1)) lines.push(word);
    else lines[lines.length - 1] = `${lines.at(-1)} ${word}`.trim();
  }
  return lines.map((line) => cut(line, most));
}

function doctor(place) {
  place.replaceChildren(h("p", { class: "empty" }, "Looking…"));
  return watch("/v1/doctor", (body, status) => {
    if (status !== 200) { place.replaceChildren(h("p", { class: "note bad" }, body.error ?? "The node does not say.")); return; }
    const rank = { error: 0, warning: 1, ok: 2 };
    const sorted = [...body.findings].sort((a, b) => (rank[a.severity] ?? 3) - (rank[b.severity] ?? 3));
    const bad = sorted.filter((one) => one.severity === "error" || one.severity === "warning").length;
    place.replaceChildren(h("section", { class: "card" }, h("header", {}, h("h2", {}, "The cluster, as its doctor sees it"), bad ? tag("waiting", `${bad} to look at`) : tag("done", "all is well")),
      h("ul", { class: "sentences" }, sorted.map((one) => h("li", { class: one.severity }, one.message, h("span", { class: "quiet small" }, `  ${one.check}`), one.hint ? h("p", { class: "quiet" }, one.hint) : null)))));
  });
}
