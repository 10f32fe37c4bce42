// A training: loss and accuracy as its workers tell them in their logs, and the workers' pace.

import { chart } from "../charts.js";
import { card, h } from "../dom.js";
import { bytes, count, number, span } from "../format.js";
import { watch } from "../live.js";
import { written } from "./task.js";

const LINE = /^epoch (\d+)\/(\d+): loss (\S+), (.+?) (\S+?)(?:; validation: loss (\S+), .+? (\S+?))?; (\d+) samples\/s$/;
const MOST_WORKERS = 8;
const LOOK_MS = 1500;

/** The tab of a job that trains. */
export function training(place, job) {
  const stop = new AbortController();
  const epochs = new Map();
  const [losses, metrics, pace] = ["Loss", "Accuracy", "Samples a second"].map((label, at) => chart({ label, series: at === 2 ? ["samples a second"] : ["training", "validation"], x: "epoch", height: 250, logY: at === 0, format: at === 2 ? count : number }));
  const none = h("p", { class: "empty" }, "No epoch has ended yet.");
  const metric = card("Accuracy", metrics.element);
  const state = h("div");
  const now = h("p", { class: "tip", role: "status" });
  place.replaceChildren(h("div", { class: "stack" }, none, now, h("div", { class: "pair" }, card("Loss", losses.element), metric), h("div", { class: "pair" }, card("Pace", pace.element), state)));
  const workers = Array.from({ length: Math.min(job.tasks, MOST_WORKERS) }, () => ({ offset: 0, rest: "" }));

  function take(line) {
    const found = LINE.exec(line);
    if (!found) return;
    const [, epoch, of, loss, name, value, validationLoss, validationValue, speed] = found;
    epochs.set(Number(epoch), { of: Number(of), name, loss: Number(loss), value: Number(value), validationLoss: validationLoss === undefined ? null : Number(validationLoss), validationValue: validationValue === undefined ? null : Number(validationValue), speed: Number(speed) });
  }

  function draw() {
    const all = [...epochs].sort(([a], [b]) => a - b);
    none.hidden = all.length > 0;
    if (!all.length) return;
    const x = all.map(([epoch]) => epoch);
    const column = (name) => all.map(([, row]) => row[name]);
    losses.update([x, column("loss"), column("validationLoss")]);
    metrics.update([x, column("value"), column("validationValue")]);
    pace.update([x, column("speed")]);
    const [epoch, last] = all.at(-1);
    metric.querySelector("h2").textContent = last.name[0].toUpperCase() + last.name.slice(1);
    now.textContent = `Epoch ${epoch} of ${last.of}: loss ${number(last.loss)}, ${last.name} ${number(last.value)}${last.validationLoss === null ? "" : `; validation: loss ${number(last.validationLoss)}, ${last.name} ${number(last.validationValue)}`}`;
  }

  let timer = null;
  async function look() {
    await Promise.all(workers.map(async (worker, task) => {
      const text = await written(job.id, task, worker.offset, stop.signal).catch(() => "");
      // The log is text of one byte a character, but for what users named.
      worker.offset += new TextEncoder().encode(text).length;
      const lines = (worker.rest + text).split("\n");
      worker.rest = lines.pop();
      lines.forEach(take);
    }));
    if (stop.signal.aborted) return;
    draw();
    timer = setTimeout(look, LOOK_MS);
  }
  look();
  const unwatch = watch(`/v1/jobs/${job.id}`, (body, status) => {
    if (status !== 200 || !body.training) return;
    const { checkpoints, late, waiting } = body.training;
    state.replaceChildren(card("Workers",
      waiting.map(({ node_name: node, why }) => h("p", { class: "note" }, `${node}: ${why}`)),
      late.length ? h("ul", { class: "sentences" }, late.map((one) => h("li", { class: "warning" }, `Worker ${one.worker} on ${one.node_name} takes ${span(one.taken_ms / 1000)} over clock ${count(one.clock)}, usually ${span(one.usual_ms / 1000)}`))) : h("p", { class: "quiet" }, "No worker is later than usual."),
      checkpoints.length ? h("dl", { class: "facts" }, checkpoints.slice(-8).flatMap((file) => [h("dt", {}, `Step ${count(file.step)}`), h("dd", {}, `checkpoint on ${file.node_name}, ${bytes(file.bytes)}`)])) : h("p", { class: "quiet" }, "No checkpoint yet.")));
  });
  return () => { stop.abort(); clearTimeout(timer); unwatch(); [losses, metrics, pace].forEach((one) => one.end()); };
}
