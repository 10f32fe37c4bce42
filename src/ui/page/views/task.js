// One task: how it ended, what it gave, what it wrote while it writes it.

import { h, tag } from "../dom.js";
import { bytes, cell, moment, span } from "../format.js";
import { read, watch } from "../live.js";

const LOOK_MS = 1000;
/** Of a log that is longer than this the server gives a part, and more at once. */
const PART = 1024 * 1024;
const MOST_TEXT = 256 * 1024;

export default {
  title: ([, , task]) => `Task ${task}`,
  show(main, [job, , number]) {
    const task = Number(number);
    const head = h("div", { class: "head" });
    const outcome = h("section", { class: "card", hidden: true });
    const logs = h("div", { class: "pair" });
    main.append(head, outcome, logs);
    let row = null;
    let name = job;
    let isOver = false;
    const drawHead = () => {
      head.replaceChildren(h("h1", {}, `Task ${task}`), row ? tag(row.state) : "",
        h("p", { class: "sub" }, "of ", h("a", { href: `#/job/${job}` }, name), row?.running_ms !== undefined ? `, runs for ${span(row.running_ms / 1000)}` : "", row?.failures ? `, ${row.failures} failed ${row.failures === 1 ? "attempt" : "attempts"}` : "", " · ", h("a", { href: `#/why/${job}/${task}` }, "Why is it where it is?")));
    };
    drawHead();
    const gone = new AbortController();
    async function readOutcome() {
      try {
        outcome.replaceChildren(...facts(await read(`/v1/jobs/${encodeURIComponent(job)}/tasks/${task}/result`, gone.signal)));
        outcome.hidden = false;
      } catch {
        // The coordinator may just have died, or the task runs again.
        if (!gone.signal.aborted) setTimeout(() => { if (isOver && !gone.signal.aborted) readOutcome(); }, 1500);
      }
    }
    const stops = [
      watch(`/v1/jobs/${encodeURIComponent(job)}`, (body, status) => { if (status === 200) { name = body.name; drawHead(); } }),
      watch(`/v1/jobs/${encodeURIComponent(job)}/tasks?offset=${task}&limit=1`, (body, status) => {
        if (status !== 200) return;
        [row] = body.tasks;
        isOver = ["done", "failed", "cancelled"].includes(row?.state);
        drawHead();
        if (isOver) readOutcome();
        else outcome.hidden = true;
      }),
      log(logs, "Output (stdout)", job, task, "stdout", () => isOver),
      log(logs, "Errors (stderr)", job, task, "stderr", () => isOver),
    ];
    return () => { gone.abort(); stops.forEach((stop) => stop()); };
  },
};

function facts(result) {
  const line = (name, ...value) => [h("dt", {}, name), h("dd", {}, value)];
  return [
    h("header", {}, h("h2", {}, "Outcome"), tag(result.status)),
    result.failure ? h("p", { class: "note bad" }, result.failure.message) : null,
    result.failure?.traceback ? h("pre", { class: "log" }, result.failure.traceback) : null,
    h("dl", { class: "facts" },
      Object.entries(result.params).map(([name, value]) => line(name, cell(value))),
      result.value === undefined ? [] : line("Result", h("code", {}, JSON.stringify(result.value))),
      line("Node", result.node_name ?? result.node), line("Began", moment(result.started_ms)), line("Took", span(result.seconds)),
      line("Processor time", span(result.cpu_seconds)), line("Most memory", bytes(result.max_rss_bytes)), line("Attempt", result.attempt),
      result.outputs.length ? line("Files", result.outputs.slice(0, 100).flatMap((file, at) => [at ? ", " : "", h("a", { href: `/v1/blobs/${file.hash}`, download: file.path.split("/").at(-1) }, file.path), h("span", { class: "quiet" }, ` ${bytes(file.bytes)}`)])) : []),
  ].filter(Boolean);
}

/** A stream of the task, as far as it was written; its end is shown. */
function log(place, title, job, task, stream, isOver) {
  const text = h("pre", { class: "log", tabindex: "0", "aria-label": title });
  const note = h("span", { class: "quiet small", role: "status" });
  place.append(h("section", { class: "card" }, h("header", {}, h("h2", {}, title), note), text));
  let [offset, timer, ended] = [0, null, false];
  let decoder = new TextDecoder();
  let wasOver = false;
  const stop = new AbortController();
  async function look() {
    // Once more after the end: its last words.
    const last = isOver();
    let isPart = false;
    try {
      const answer = await fetch(`/v1/jobs/${encodeURIComponent(job)}/tasks/${task}/log?stream=${stream}&offset=${offset}&follow=false`, { signal: stop.signal });
      if (answer.ok) {
        const part = await answer.arrayBuffer();
        offset += part.byteLength;
        isPart = part.byteLength >= PART;
        if (part.byteLength) add(decoder.decode(part, { stream: true }));
        note.textContent = offset ? bytes(offset) : "nothing so far";
        wasOver = last && !isPart;
      }
    } catch (error) {
      if (error.name === "AbortError") return;
    }
    ended = wasOver;
    if (!ended) timer = setTimeout(look, isPart ? 0 : LOOK_MS);
    else if (!offset) note.textContent = "nothing";
  }
  function add(more) {
    const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 30;
    const whole = text.textContent + more;
    text.textContent = whole.length > MOST_TEXT ? `… (the command nodectl logs shows all)\n${whole.slice(-MOST_TEXT)}` : whole;
    if (atEnd) text.scrollTop = text.scrollHeight;
  }
  look();
  return () => { stop.abort(); clearTimeout(timer); };
}

/** What a task has written so far. */
export async function written(job, task, offset, signal) {
  const answer = await fetch(`/v1/jobs/${encodeURIComponent(job)}/tasks/${task}/log?stream=stdout&offset=${offset}&follow=false`, { signal });
  return answer.ok ? answer.text() : "";
}
