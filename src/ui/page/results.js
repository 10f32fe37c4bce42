// The results of a job: the last 10,000 of them as they come, for pictures, which say that they show
// a part; pages of all of them, as they ended or as the node sorts them; and all, for a file.

import { read, watch } from "./live.js";

export const MOST_RESULTS = 10000;
const PAGE = 512;
/** A position that no result has. */
const BEHIND_ALL = 2 ** 32 - 1;
/** While more pages follow at once, views are drawn anew this often, in milliseconds: that costs more than reading a page. */
const DRAWN_EVERY = 2000;
/** Characters of the last line of a failure. */
const MOST_SAID = 200;

/** Calls `tell(feed)` when there are more results. A feed has `results`, `progress`, `skipped`. */
export function follow(job, tell) {
  const stop = new AbortController();
  const found = new Map();
  const feed = { results: [], progress: null, skipped: 0, complete: false };
  const base = pathOf(job);
  let cursor = null;
  let again = false;
  let busy = false;
  let before = -1;

  async function begin() {
    const end = await last(base, stop.signal);
    feed.skipped = Math.max(0, end.position - MOST_RESULTS);
    cursor = { claim: end.claim, position: feed.skipped };
  }

  async function pull() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      if (!cursor) await begin();
      let told = -DRAWN_EVERY;
      for (;;) {
        const page = await read(`${base}?claim=${cursor.claim}&position=${cursor.position}&limit=${PAGE}`, stop.signal);
        cursor = page.cursor;
        feed.progress = page.progress;
        for (const result of page.results) { found.delete(result.task); found.set(result.task, slim(result)); }
        for (const task of found.keys()) { if (found.size <= MOST_RESULTS) break; found.delete(task); feed.skipped += 1; }
        if (page.results.length < PAGE) break;
        if (performance.now() - told < DRAWN_EVERY) continue;
        feed.results = [...found.values()];
        tell(feed);
        told = performance.now();
      }
      feed.results = [...found.values()];
      feed.complete = true;
      tell(feed);
      const { done, failed, stopped } = feed.progress;
      const total = feed.skipped + found.size;
      // Pages that ask the same at the same time are answered together: the last results may have come since.
      if (total < done + failed + stopped && total !== before) setTimeout(pull, 1000);
      before = total;
    } catch (error) {
      // The coordinator may just have died; the next change of the job tries again.
      if (error.name !== "AbortError") setTimeout(pull, 1500);
    } finally {
      busy = false;
      if (again && !stop.signal.aborted) { again = false; setTimeout(pull, 250); }
    }
  }

  const unwatch = watch(`/v1/jobs/${encodeURIComponent(job)}`, (body, status) => { if (status === 200) pull(); });
  return () => { stop.abort(); unwatch(); };
}

const pathOf = (job) => `/v1/jobs/${encodeURIComponent(job)}/results`;

/** The cursor behind the last result. */
async function last(base, signal) {
  const { cursor: { claim } } = await read(`${base}?limit=1`, signal);
  return (await read(`${base}?claim=${claim}&position=${BEHIND_ALL}&limit=1`, signal)).cursor;
}

/** A page of results as they ended, the last first: { results, total }. */
export async function latest(job, offset, limit, signal) {
  const base = pathOf(job);
  const { claim, position: total } = await last(base, signal);
  const behind = Math.max(0, total - offset);
  const from = Math.max(0, behind - limit);
  const results = behind ? (await read(`${base}?claim=${claim}&position=${from}&limit=${Math.max(1, behind - from)}`, signal)).results : [];
  return { results: results.reverse(), total };
}

/**
 * A page of results that the node has sorted: { results, total }. Of many results it takes a while
 * until all are read: `tell(answer)` has what there is meanwhile.
 */
export async function ranked(job, { by, down, status = "", offset = 0, limit }, signal, tell = () => {}) {
  for (;;) {
    const answer = await read(`${pathOf(job)}/ranked?by=${encodeURIComponent(by)}&descending=${Boolean(down)}${status ? `&status=${status}` : ""}&offset=${offset}&limit=${limit}`, signal);
    if (answer.complete) return answer;
    tell(answer);
  }
}

/** All results in the order in which they ended, page by page: `take(results, of)`. */
export async function everything(job, signal, take) {
  const base = pathOf(job);
  let cursor = { claim: 0, position: 0 };
  for (;;) {
    const page = await read(`${base}?claim=${cursor.claim}&position=${cursor.position}&limit=${PAGE}`, signal);
    if (cursor.claim && page.cursor.claim !== cursor.claim) throw new Error("another node has taken the job over meanwhile: try again");
    cursor = page.cursor;
    if (!page.results.length) return;
    await take(page.results, page.progress.done + page.progress.failed + page.progress.stopped);
  }
}

/** Without the streams, which the view of a task reads, but for the last line of a failure. */
function slim({ stdout, stderr, ...rest }) {
  if (rest.status !== "failed" || rest.failure?.traceback) return rest;
  const said = stderr.tail.trimEnd().split("\n").at(-1).trim();
  return said ? { ...rest, said: said.slice(0, MOST_SAID) } : rest;
}

/** The columns of results: parameters, then what tasks gave, as { name, by, of(result) }; by is what the node calls it. */
export function columns(results) {
  const [params, values] = [new Set(), new Set()];
  let plain = false;
  for (const { params: given, value } of results.slice(-2000)) {
    Object.keys(given).forEach((name) => params.add(name));
    if (value && typeof value === "object" && !Array.isArray(value)) Object.keys(value).forEach((name) => values.add(name));
    else if (value !== undefined) plain = true;
  }
  const all = [...params].map((name) => ({ name, by: `params.${name}`, kind: "param", of: (result) => result.params[name] }));
  if (plain) all.push({ name: "value", by: "value", kind: "value", of: (result) => (result.value && typeof result.value === "object" && !Array.isArray(result.value) ? undefined : result.value) });
  all.push(...[...values].map((name) => ({ name: params.has(name) ? `${name} (result)` : name, by: `value.${name}`, kind: "value", of: (result) => result.value?.[name] })));
  all.push({ name: "seconds", by: "seconds", kind: "time", of: (result) => result.seconds });
  return all;
}

/** How many tasks failed for which reason, most first, and the last line of the first of them. */
export function failures(results) {
  const kinds = new Map();
  for (const { task, status, failure, said } of results) {
    if (status !== "failed" || !failure) continue;
    const reason = failure.message.split("\n")[0];
    const one = kinds.get(reason) ?? { reason, kind: failure.kind, tasks: [], said };
    one.tasks.push(task);
    kinds.set(reason, one);
  }
  return [...kinds.values()].sort((a, b) => b.tasks.length - a.tasks.length);
}

/** The steps at which a sweep gave tasks up, the least first, with how many: as the reasons have them (`logic/sweep.rs`). */
export function rungs(results) {
  const given = new Map();
  for (const { status, failure } of results) {
    const step = status === "stopped" && /(?:came to|by) step (\d+)/.exec(failure?.message ?? "")?.[1];
    if (step) given.set(Number(step), (given.get(Number(step)) ?? 0) + 1);
  }
  return [...given].map(([step, tasks]) => ({ step, tasks })).sort((a, b) => a.step - b.step);
}

/** A line of a CSV file. A cell that a spreadsheet would take for a formula begins with '. */
export function csvLine(cells) {
  const quoted = (value) => {
    let text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${cells.map(quoted).join(",")}\n`;
}
