// The results of a job as a table, page by page: as they ended, or sorted by the node, which has all.

import { h, segments, tag } from "../dom.js";
import { cell, count } from "../format.js";
import { watch } from "../live.js";
import { columns, csvLine, everything, latest, ranked } from "../results.js";
import { table } from "../table.js";

const PAGE = 100;
/** As many the node keeps sorted. */
const MOST_RANKED = 10000;
const MOST_COLUMNS = 40;
/** Lines of a file that are handed to the browser together. */
const LINES = 8192;

/** The tab of a job's results. */
export function results(place, job) {
  let [order, status, offset, total] = [job.tasks <= MOST_RANKED ? { by: "task", down: false } : null, "", 0, 0];
  const known = new Map();
  let list = null;
  let rows = [];
  let asked = new AbortController();
  let saving = null;
  let loading = false;
  let again = false;
  const words = h("span", { class: "quiet", role: "status" }, "Reading…");
  const saved = h("span", { class: "quiet", role: "status" });
  const turn = (by) => { offset = Math.max(0, offset + by); load(true); };
  const back = h("button", { type: "button", onclick: () => turn(-PAGE) }, "Earlier");
  const on = h("button", { type: "button", onclick: () => turn(PAGE) }, "Later");
  const unsorted = h("button", { type: "button", onclick: () => { [order, offset] = [null, 0]; list = null; load(true); } }, "Last ended first");
  const save = h("button", { type: "button", onclick: () => (saving ? saving.abort() : download()) }, "Save all as CSV");
  const body = h("div");
  const states = ["", "done", "failed", "cancelled", "stopped"].map((word) => [word, word || "all"]);
  place.replaceChildren(h("section", { class: "card" },
    h("div", { class: "controls" }, segments("State of results", states, status, (next) => { [status, offset] = [next, 0]; load(true); }), unsorted, save, saved),
    body, h("div", { class: "controls" }, back, on, words)));

  /** Reads what is to be seen; what was asked for before is of no use if something else is wanted. */
  async function load(isOther) {
    if (isOther) { asked.abort(); asked = new AbortController(); } else if (loading) { again = true; return; }
    const { signal } = asked;
    loading = true;
    try {
      const sorted = order ?? { by: "ended", down: true };
      const answer = order || status ? await ranked(job.id, { ...sorted, status, offset, limit: PAGE }, signal, (part) => show(part)) : await latest(job.id, offset, PAGE, signal);
      if (!signal.aborted) show(answer);
    } catch (error) {
      if (signal.aborted) return;
      // The coordinator may just have died.
      words.textContent = `${error.message} It is tried again.`;
      setTimeout(() => { if (!signal.aborted) load(false); }, 1500);
    }
    if (signal.aborted) return;
    loading = false;
    if (again) { again = false; setTimeout(() => { if (!signal.aborted) load(false); }, 250); }
  }

  function show(answer) {
    ({ results: rows, total } = answer);
    const isNew = columns(rows).filter((column) => !known.has(column.by)).map((column) => known.set(column.by, column)).length > 0;
    if (!list || isNew) draw();
    list.update(rows);
    const most = order || status ? Math.min(total, MOST_RANKED) : total;
    back.disabled = offset === 0;
    on.disabled = offset + PAGE >= most;
    unsorted.disabled = !order;
    const shown = rows.length ? `${count(offset + 1)} to ${count(offset + rows.length)} of ${count(total)}` : "";
    words.textContent = [shown, answer.complete === false ? `${count(answer.read)} read so far, …` : "", most < total ? `sorted, the first ${count(MOST_RANKED)} can be seen` : ""].filter(Boolean).join("; ");
  }

  function draw() {
    const ranks = { param: 0, value: 1, time: 2 };
    const shown = [...known.values()].sort((a, b) => ranks[a.kind] - ranks[b.kind]).slice(0, MOST_COLUMNS);
    list = table({
      caption: "The results", id: (result) => result.task, sort: order?.by, down: order?.down, open: (result) => `#/job/${job.id}/task/${result.task}`, empty: "No results yet.",
      turned: (by, down) => { [order, offset] = [{ by, down }, 0]; load(true); },
      columns: [
        { key: "task", title: "Task", number: true, value: (result) => result.task, show: (result) => h("a", { class: "main", href: `#/job/${job.id}/task/${result.task}` }, result.name ?? String(result.task)) },
        { key: "status", title: "State", value: (result) => result.status, show: (result) => tag(result.status) },
        ...shown.map((column) => ({ key: column.by, title: column.name, value: column.of, number: rows.some((result) => typeof column.of(result) === "number"), show: (result) => cell(column.of(result)) })),
        { key: "node", title: "Node", show: (result) => result.node_name ?? "" },
      ],
    });
    body.replaceChildren(list.element);
  }

  /** All results as a file. What has been read is handed to the browser, so that the page stays small. */
  async function download() {
    saving = new AbortController();
    save.textContent = "Stop saving";
    const inFile = new Map();
    const parts = [];
    let lines = [];
    let written = 0;
    const hand = () => { parts.push(new Blob(lines)); lines = []; };
    try {
      await everything(job.id, saving.signal, (page, all) => {
        // Columns that come later are further to the right: lines before them are shorter.
        for (const column of columns(page)) if (!inFile.has(column.by)) inFile.set(column.by, column);
        const shown = [...inFile.values()];
        for (const result of page) lines.push(csvLine([result.task, result.status, result.node_name ?? result.node, ...shown.map((column) => column.of(result))]));
        written += page.length;
        if (lines.length >= LINES) hand();
        saved.textContent = `${count(written)} of ${count(all)} read`;
      });
      hand();
      const head = csvLine(["task", "status", "node", ...[...inFile.values()].map((column) => column.name)]);
      const link = h("a", { href: URL.createObjectURL(new Blob([head, ...parts], { type: "text/csv" })), download: `${job.name.replace(/[^\w.-]+/g, "_")}-${job.id}.csv` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      saved.textContent = `${count(written)} saved`;
    } catch (error) {
      saved.textContent = saving.signal.aborted ? "" : error.message;
    }
    saving = null;
    save.textContent = "Save all as CSV";
  }

  const unwatch = watch(`/v1/jobs/${encodeURIComponent(job.id)}`, (_, code) => { if (code === 200) load(false); });
  return () => { unwatch(); asked.abort(); saving?.abort(); };
}
