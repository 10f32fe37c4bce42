// One job: how far it is, where its tasks ran, what failed, what came of it.

import { action } from "../actions.js";
import { chart, parallel } from "../charts.js";
import { card, choice, figures, h, segments, showCurrent, tag, track, wide } from "../dom.js";
import { cell, count, counted, moment, number, percent, span } from "../format.js";
import { read, watch } from "../live.js";
import { MOST_RESULTS, columns, failures, follow, ranked, rungs } from "../results.js";
import { taskStream } from "../stream.js";
import { table } from "../table.js";
import { integration } from "./integration.js";
import { bar, isEnded } from "./jobs.js";
import { results } from "./results.js";
import { training } from "./training.js";
import { jobWhy } from "./why.js";

const TABS = { stream: ["Where and when", streamTab], tasks: ["Tasks", tasksTab], results: ["Results", results], plot: ["Plots", plotTab], training: ["Training", training], integration: ["Patterns", integration], why: ["Why", jobWhy] };
/** Tabs of jobs whose worker is this. */
const OF_WORKERS = { training: "nodectl's train-worker", integration: "nodectl's integrate-worker" };
const PAGE = 50;

export default {
  title: () => "Job",
  show(main, [id, wanted]) {
    const head = h("div", { class: "head" });
    const numbers = h("div");
    const bars = h("div");
    const tabs = h("div", { class: "tabs", role: "navigation", "aria-label": "About the job" });
    const body = h("div");
    main.append(head, numbers, bars, tabs, body);
    let job = null;
    let leave = null;
    const path = () => `/v1/jobs/${encodeURIComponent(id)}`;
    const cancel = action({
      title: "Cancel this job?", verb: "Cancel the job", danger: true, path: () => `${path()}/cancel`, body: () => null, said: () => "The job is cancelled.",
      text: () => `${counted(job.progress.running, "running task")} will be stopped, and ${count(job.tasks - job.done - job.failed - job.stopped - job.progress.running)} more will never start. ${counted(job.done, "result")} so far will be kept. This cannot be undone.`,
    });
    const extend = action({
      title: "Run more parameter sets?", verb: "Add parameter sets", path: () => `${path()}/extend`, said: (answer) => `They are the job ${answer.job}.`,
      text: () => "A new job does the same work with the sets that you type, one a line, values with commas between them. `nodectl results --all` shows its results with those of this job.",
      field: () => job.work.params.join(", "),
      body: (typed) => ({ columns: job.work.params, rows: typed.split("\n").filter((line) => line.trim()).map((line) => line.split(",").map(value)) }),
    });
    const retry = action({
      title: "Run the failed tasks again?", verb: "Retry failed tasks", path: () => `${path()}/retry`, body: () => null, said: (answer) => `${counted(answer.tasks, "task")} to run again.`,
      text: () => `${counted(job.failed, "failed task")} will get as many attempts again. Tasks that are done stay as they are.`,
    });

    function draw() {
      const { progress, work } = job;
      document.title = `${job.name} · nodectl`;
      const took = ((job.ended_ms ?? Date.now()) - job.submitted_ms) / 1000;
      // What has the focus keeps it.
      const lines = [h("h1", {}, job.name), tag(job.progress.waiting_for && !isEnded(job) ? "waiting" : job.phase), h("div", { class: "controls push" }, isEnded(job) ? null : cancel, job.failed ? retry : null, work.params.length ? extend : null),
        h("p", { class: "sub" }, h("code", {}, job.id), ` · ${job.user || "somebody"} at ${job.submitter_name || "a node"}, ${moment(job.submitted_ms)}`, job.coordinator_name ? ` · coordinated by ${job.coordinator_name}` : ""),
        work.command.length ? h("p", { class: "sub" }, h("code", {}, short(work.command.join(" "), 180))) : work.worker ? h("p", { class: "sub" }, h("code", {}, work.worker)) : null,
        progress.waiting_for && !isEnded(job) ? h("p", { class: "sub" }, `Waits for ${progress.waiting_for}.`) : null,
        job.reason ? h("p", { class: "note bad" }, job.reason) : null];
      if (!head.contains(document.activeElement)) head.replaceChildren(...lines.filter(Boolean));
      numbers.replaceChildren(figures([
        ["Done", count(job.done), `of ${count(job.tasks)}`],
        ["Failed", count(job.failed), progress.failures > job.failed ? counted(progress.failures, "attempt") : "", job.failed ? "bad" : ""],
        job.stopped ? ["Given up or cancelled", count(job.stopped)] : null,
        isEnded(job) ? null : ["Running", count(progress.running), `${count(progress.queued)} waiting on nodes`],
        isEnded(job) ? ["Tasks a second", took > 0 ? number(Number((job.done / took).toPrecision(3))) : "–"] : ["Tasks a second", progress.rate.toFixed(1)],
        isEnded(job) ? ["Took", span(took)] : ["Time left", progress.left_seconds === undefined ? "–" : span(progress.left_seconds), percent(job.done + job.failed + job.stopped, job.tasks)],
      ]));
      bars.replaceChildren(bar(job, progress.running));
    }

    function openTab() {
      const known = Object.keys(TABS).filter((name) => !(name in OF_WORKERS) || job.work.worker === OF_WORKERS[name]);
      const special = known.find((name) => name in OF_WORKERS);
      const name = known.includes(wanted) ? wanted : special ?? "stream";
      tabs.replaceChildren(...known.map((one) => h("a", { href: `#/job/${encodeURIComponent(id)}/${one}`, "aria-current": one === name ? "page" : null }, TABS[one][0])));
      showCurrent(tabs);
      leave = TABS[name][1](body, job) ?? (() => {});
    }

    const stop = watch(path(), (answer, status) => {
      if (status === 404) { main.replaceChildren(h("p", { class: "empty" }, answer.error ?? "No such job.")); return; }
      if (status !== 200) return;
      const isFirst = job === null;
      job = answer;
      draw();
      if (isFirst) openTab();
    });
    return () => { stop(); leave?.(); };
  },
};

/** What somebody typed, as JSON has it: a number, true or false, else text. */
function value(typed) {
  const text = typed.trim();
  try {
    const read = JSON.parse(text);
    return typeof read === "object" ? text : read;
  } catch {
    return text;
  }
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function streamTab(place, job) {
  const stream = taskStream((task) => { location.hash = `#/job/${job.id}/task/${task}`; });
  const empty = h("p", { class: "empty" }, "No task has ended yet.");
  const reasons = card("Failures by reason");
  reasons.hidden = true;
  const shares = table({
    caption: "What each node has of the job", id: (share) => share.node, sort: "name", empty: "No node works for it.",
    columns: [
      { key: "name", title: "Node", value: (share) => share.name, show: (share) => share.name },
      { key: "running", title: "Running", number: true, value: (share) => share.running, show: (share) => count(share.running) },
      { key: "queued", title: "Waiting", number: true, value: (share) => share.queued, show: (share) => count(share.queued) },
      { key: "done", title: "Done", number: true, value: (share) => share.done, show: (share) => count(share.done) },
    ],
  });
  place.replaceChildren(h("div", { class: "stack" }, card("Task stream", empty, stream.element), reasons, card("Nodes", shares.element)));
  let [feed, names] = [null, new Map()];
  let running = [];
  let seen = 0;
  const draw = () => {
    const ended = (feed?.results ?? []).map((result) => ({ task: result.task, node: result.node_name ?? result.node.slice(0, 8), start: result.started_ms, end: result.started_ms + result.seconds * 1000, status: result.status }));
    const now = running.map((row) => ({ task: row.task, node: names.get(row.node) ?? row.node?.slice(0, 8) ?? "?", start: seen - row.running_ms, end: seen, status: "running" }));
    empty.hidden = ended.length + now.length > 0;
    stream.update([...ended, ...now], feed?.skipped ? `The last ${count(MOST_RESULTS)} of ${counted(feed.skipped + ended.length, "task")}.` : "Point at a task to read about it; click to open it.");
    const kinds = failures(feed?.results ?? []);
    reasons.hidden = !kinds.length;
    const lines = kinds.slice(0, 20).map(({ reason, tasks, said }) => h("li", { class: "no" }, h("strong", {}, `${count(tasks.length)} × `), reason, said ? `: ${said}` : "", h("span", { class: "quiet" }, " "), tasks.slice(0, 6).flatMap((task, at) => [at ? ", " : "", h("a", { href: `#/job/${job.id}/task/${task}` }, `task ${task}`)]), tasks.length > 6 ? h("span", { class: "quiet" }, ` and ${count(tasks.length - 6)} more`) : null));
    if (!reasons.contains(document.activeElement)) reasons.replaceChildren(h("header", {}, h("h2", {}, "Failures by reason")), h("ul", { class: "sentences" }, lines));
  };
  const stops = [
    follow(job.id, (next) => { feed = next; draw(); }),
    watch(`/v1/jobs/${job.id}`, (body, status) => {
      if (status !== 200) return;
      names = new Map(body.progress.nodes.map((share) => [share.node, share.name]));
      shares.update(body.progress.nodes);
    }),
    watch(`/v1/jobs/${job.id}/tasks?state=running&offset=0&limit=400`, (body, status) => {
      if (status !== 200) return;
      running = body.tasks.filter((row) => row.running_ms !== undefined);
      seen = Date.now();
      draw();
    }),
  ];
  return () => { stops.forEach((stop) => stop()); stream.end(); };
}

function tasksTab(place, job) {
  let [state, offset, total, stop] = ["", 0, 0, () => {}];
  let names = new Map();
  const where = h("span", { class: "quiet", role: "status" });
  const turn = (by) => { offset = Math.max(0, offset + by); open(); };
  const back = h("button", { type: "button", onclick: () => turn(-PAGE) }, "Earlier");
  const on = h("button", { type: "button", onclick: () => turn(PAGE) }, "Later");
  const list = table({
    caption: "The tasks", id: (row) => row.task, open: (row) => `#/job/${job.id}/task/${row.task}`, empty: "No tasks in this state.",
    columns: [
      { key: "task", title: "Task", number: true, show: (row) => h("a", { class: "main", href: `#/job/${job.id}/task/${row.task}` }, String(row.task)) },
      { key: "state", title: "State", show: (row) => tag(row.state) },
      { key: "node", title: "Node", show: (row) => row.name },
      { key: "failures", title: "Failed attempts", number: true, show: (row) => String(row.failures) },
      { key: "time", title: "Runs for", number: true, show: (row) => (row.running_ms === undefined ? "–" : span(row.running_ms / 1000)) },
      { key: "why", title: "", show: (row) => h("a", { href: `#/why/${job.id}/${row.task}` }, "Why?") },
    ],
  });
  const states = ["", "running", "queued", "pending", "done", "failed", "cancelled"].map((word) => [word, word || "all"]);
  place.replaceChildren(h("section", { class: "card" }, h("div", { class: "controls" }, segments("State of tasks", states, state, (next) => { state = next; offset = 0; open(); })), list.element, h("div", { class: "controls" }, back, on, where)));

  function open() {
    stop();
    stop = watch(`/v1/jobs/${job.id}/tasks?${state ? `state=${state}&` : ""}offset=${offset}&limit=${PAGE}`, (body, status) => {
      if (status !== 200) { where.textContent = body.error ?? ""; return; }
      total = body.total;
      list.update(body.tasks.map((row) => ({ ...row, name: names.get(row.node) ?? row.node?.slice(0, 8) ?? "–" })));
      back.disabled = offset === 0;
      on.disabled = offset + PAGE >= total;
      where.textContent = total ? `${count(offset + 1)} to ${count(Math.min(offset + PAGE, total))} of ${count(total)}` : "";
    });
  }
  read("/v1/nodes").then((nodes) => { names = new Map(nodes.map((node) => [node.id, node.name])); }).catch(() => {}).finally(open);
  return () => stop();
}

function note(feed) {
  return feed.skipped ? `The last ${count(feed.results.length)} of ${counted(feed.skipped + feed.results.length, "result")}.` : `${counted(feed.results.length, "result")}.`;
}

function plotTab(place, job) {
  let [feed, x, y] = [null, null, null];
  let [top, looking, drawing] = [null, false, null];
  const gone = new AbortController();
  const controls = h("div", { class: "controls" });
  const body = h("div");
  const lines = h("div");
  const rungsOf = h("section", { class: "card", hidden: true });
  const sweep = job.work.sweep;
  place.replaceChildren(h("div", { class: "stack" }, h("section", { class: "card" }, h("header", {}, h("h2", {}, "Any two columns")), controls, body), lines, rungsOf));

  const numeric = () => columns(feed.results).filter((column) => feed.results.some((result) => typeof column.of(result) === "number"));
  function draw() {
    const all = numeric();
    if (!all.length) { body.replaceChildren(h("p", { class: "empty" }, "No numbers to plot yet.")); return; }
    const names = all.map((column) => column.name);
    if (!names.includes(x)) x = all.find((column) => column.kind === "param")?.name ?? names.at(-1);
    if (!names.includes(y)) y = (names.includes(sweep?.metric) && sweep.metric) || (all.find((column) => column.kind === "value")?.name ?? names.at(-1));
    if (!controls.contains(document.activeElement)) controls.replaceChildren(choice("Across", names.map((name) => [name, name]), x, (next) => { x = next; draw(); }), choice("Up", names.map((name) => [name, name]), y, (next) => { y = next; draw(); }), h("span", { class: "quiet" }, note(feed)));
    const [across, up] = [x, y].map((name) => all.find((column) => column.name === name));
    const points = feed.results.map((result) => [across.of(result), up.of(result), result.status]).filter(([a, b]) => typeof a === "number" && typeof b === "number").sort((a, b) => a[0] - b[0]);
    const isGivenUp = (status) => status === "stopped";
    drawing?.end();
    const values = points.map(([a]) => a);
    drawing = chart({ label: `${y} over ${x}`, series: [y, "given up"], colours: ["--series-1", "--stopped"], x, points: true, height: 320, logX: across.kind === "param" && values[0] > 0 && values.at(-1) / values[0] > 50 });
    body.replaceChildren(drawing.element);
    drawing.update([values, points.map(([, b, status]) => (isGivenUp(status) ? null : b)), points.map(([, b, status]) => (isGivenUp(status) ? b : null))]);
    drawParallel();
  }

  function drawParallel() {
    const all = columns(feed.results);
    const last = all.find((column) => column.name === (sweep?.metric ?? y));
    const axes = [...all.filter((column) => column.kind === "param").slice(0, 9), last].filter(Boolean);
    const rows = feed.results.filter((result) => typeof last?.of(result) === "number" && axes.every((axis) => axis.of(result) !== undefined));
    if (axes.length < 3 || rows.length < 2) { lines.replaceChildren(); return; }
    const goal = sweep?.goal === "max" ? -1 : 1;
    const inOrder = [...rows].sort((a, b) => goal * (last.of(a) - last.of(b)));
    const place = new Map(inOrder.map((result, at) => [result.task, at / Math.max(rows.length - 1, 1)]));
    const best = top ?? inOrder.find((result) => result.status === "done");
    lines.replaceChildren(card("Parallel coordinates",
      wide(parallel(axes.map((axis) => ({ name: axis.name, values: rows.map(axis.of) })), rows.map((result) => result.status === "stopped"), rows.map((result) => place.get(result.task)))),
      h("p", { class: "tip" }, `${goal < 0 ? "High" : "Low"} ${last.name} is drawn in orange, the rest in blue`, rows.some((result) => result.status === "stopped") ? ", tasks that were given up in grey" : "", best ? [". Best: ", h("a", { href: `#/job/${job.id}/task/${best.task}` }, `task ${best.task}`), `, ${last.name} = ${number(last.of(best))}`, axes.slice(0, -1).map((axis) => `, ${axis.name} = ${cell(axis.of(best))}`).join(""), "."] : ".")));
  }
  function drawRungs() {
    const all = rungs(feed.results);
    let left = feed.results.filter((result) => result.status === "done" || result.status === "stopped").length;
    const whole = left;
    const lines = all.map(({ step, tasks }) => {
      const words = `${count(tasks)} of ${counted(left, "task")} given up at step ${count(step)}`;
      left -= tasks;
      return h("li", {}, words, track([["done", left], ["stopped", tasks]], whole, words));
    });
    rungsOf.hidden = !lines.length;
    rungsOf.replaceChildren(h("header", {}, h("h2", {}, "Rungs")), h("ul", { class: "sentences" }, lines));
  }
  /** Of more results than are drawn the node knows which is the best. */
  async function findBest() {
    if (!sweep || !feed.skipped || looking) return;
    looking = true;
    const wanted = { by: `value.${sweep.metric}`, down: sweep.goal === "max", status: "done", limit: 1 };
    const found = await ranked(job.id, wanted, gone.signal).catch(() => null);
    looking = false;
    if (!found?.results.length || gone.signal.aborted) return;
    [top] = found.results;
    drawParallel();
  }
  const stop = follow(job.id, (next) => { feed = next; if (feed.complete) { draw(); drawRungs(); findBest(); } });
  return () => { stop(); gone.abort(); drawing?.end(); };
}
