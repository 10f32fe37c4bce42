// The jobs: how far each is, how fast, how long it still takes.

import { h, segments, tag, track } from "../dom.js";
import { count, moment, percent, span } from "../format.js";
import { watch } from "../live.js";
import { table } from "../table.js";

const MOST_FOLLOWED = 16;
let chosen = "all";
let words = "";

const KINDS = { all: () => true, open: (job) => !isEnded(job), failed: (job) => job.phase === "failed" || job.failed > 0, ended: (job) => isEnded(job) };
export const isEnded = (job) => ["done", "failed", "cancelled"].includes(job.phase);

const state = (job) => (job.detail?.waits && !isEnded(job) ? "waiting" : job.phase);

/** A job's progress as a bar. */
export function bar(job, running = 0) {
  return track([["done", job.done], ["failed", job.failed], ["stopped", job.stopped], ["running", running]], job.tasks, `${job.done} of ${job.tasks} tasks done, ${job.failed} failed`);
}

export default {
  title: () => "Jobs",
  show(main) {
    const details = new Map();
    const followed = new Map();
    let jobs = [];
    const search = h("input", { type: "search", placeholder: "Name, user or id", "aria-label": "Filter jobs", value: words, oninput: () => { words = search.value; draw(); } });
    const total = h("span", { class: "quiet", role: "status" });
    const list = table({
      caption: "The jobs", id: (job) => job.id, sort: "submitted", down: true, open: (job) => `#/job/${job.id}`, empty: "No such jobs.",
      columns: [
        { key: "name", title: "Job", value: (job) => job.name, show: (job) => h("a", { class: "main", href: `#/job/${job.id}` }, job.name) },
        { key: "phase", title: "State", value: (job) => state(job), show: (job) => tag(state(job)) },
        { key: "progress", title: "Progress", value: (job) => job.done / Math.max(job.tasks, 1), show: (job) => bar(job, job.detail?.running) },
        { key: "tasks", title: "Tasks", number: true, value: (job) => job.tasks, show: (job) => `${count(job.done)} of ${count(job.tasks)} · ${percent(job.done + job.failed + job.stopped, job.tasks)}` },
        { key: "failed", title: "Failed", number: true, value: (job) => job.failed, show: (job) => (job.failed ? h("span", { class: "failed" }, count(job.failed)) : "0") },
        { key: "rate", title: "Tasks a second", number: true, value: (job) => job.detail?.rate, show: (job) => (job.detail?.rate && !isEnded(job) ? job.detail.rate.toFixed(1) : "–") },
        { key: "left", title: "Time left", number: true, value: (job) => job.detail?.left, show: (job) => (job.detail?.left !== undefined && !isEnded(job) ? span(job.detail.left) : "–") },
        { key: "user", title: "User", value: (job) => job.user, show: (job) => job.user },
        { key: "submitted", title: "Submitted", value: (job) => job.submitted_ms, show: (job) => h("time", {}, moment(job.submitted_ms)) },
      ],
    });
    main.append(
      h("div", { class: "head" }, h("h1", {}, "Jobs"), total),
      h("div", { class: "controls" }, search, segments("Which jobs", [["all", "All"], ["open", "Open"], ["failed", "With failures"], ["ended", "Ended"]], chosen, (next) => { chosen = next; draw(); })),
      h("section", { class: "card" }, list.element),
    );

    function draw() {
      const word = words.trim().toLowerCase();
      const matches = (job) => KINDS[chosen](job) && (!word || `${job.name} ${job.user} ${job.id}`.toLowerCase().includes(word));
      const shown = jobs.filter(matches).slice(-500);
      total.textContent = shown.length === jobs.length ? `${count(jobs.length)} in all` : `${count(shown.length)} of ${count(jobs.length)}`;
      list.update(shown.map((job) => ({ ...job, detail: details.get(job.id) })));
    }

    function followOpen() {
      const open = new Set(jobs.filter((job) => !isEnded(job)).slice(-MOST_FOLLOWED).map((job) => job.id));
      for (const [id, stop] of followed) if (!open.has(id)) { stop(); followed.delete(id); }
      for (const id of open) {
        if (followed.has(id)) continue;
        followed.set(id, watch(`/v1/jobs/${id}`, (body, status) => {
          if (status !== 200) return;
          details.set(id, { rate: body.progress.rate, left: body.progress.left_seconds, running: body.progress.running, waits: Boolean(body.progress.waiting_for) });
          draw();
        }));
      }
    }
    const stop = watch("/v1/jobs", (body, status) => { if (status === 200) { jobs = body; followOpen(); draw(); } });
    return () => { stop(); followed.forEach((one) => one()); };
  },
};
