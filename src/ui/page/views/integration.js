// An integration: its patterns as they come, one below the other, their mean, and the mean's peaks
// beside the rings of the calibrant. Each task leaves some averaged patterns as JSON.

import { chart } from "../charts.js";
import { card, choice, h } from "../dom.js";
import { count, counted, number } from "../format.js";
import { follow } from "../results.js";

// The newest so many previews are read: some tens of kilobytes each. So many at a time.
const MOST_PREVIEWS = 300;
const AT_ONCE = 4;
const PICTURE_ROWS = 480;

/** The tab of a job that integrates. */
export function integration(place, job) {
  const stop = new AbortController();
  // By dataset: previews by their first frame.
  const datasets = new Map();
  const wanted = [];
  const asked = new Set();
  let [reading, chosen, frame] = [0, null, 0];
  const none = h("p", { class: "empty" }, "No patterns yet.");
  const picks = h("div", { class: "controls" });
  const canvas = h("canvas", { class: "stream", role: "img", "aria-label": "Patterns, one frame below the other" });
  const tip = h("p", { class: "tip" });
  const mean = chart({ label: "Mean of the patterns", series: ["mean", "expected rings"], colours: ["--series-1", "--series-2"], height: 280, format: number });
  const peaks = h("div");
  const waterfall = card("Patterns as they come", canvas, tip);
  const average = card("Mean", mean.element);
  const found = card("Peaks", peaks);
  const body = h("div", { class: "stack" }, picks, waterfall, h("div", { class: "pair" }, average, found));
  body.hidden = true;
  place.replaceChildren(h("div", { class: "stack" }, none, body));

  function take(feed) {
    for (const result of feed.results.slice(-MOST_PREVIEWS)) {
      const dataset = result.params.dataset;
      const names = ["preview.json", `${dataset}.json`];
      const output = result.outputs.find((file) => names.includes(file.path));
      if (!output || asked.has(output.hash)) continue;
      asked.add(output.hash);
      wanted.push({ hash: output.hash, isWhole: output.path !== names[0] });
    }
    pump();
  }

  function pump() {
    while (reading < AT_ONCE && wanted.length) {
      reading += 1;
      // The newest first: with many, the older ones are of less use.
      read(wanted.pop()).catch(() => {}).finally(() => { reading -= 1; if (!stop.signal.aborted) pump(); });
    }
  }

  async function read({ hash, isWhole }) {
    const answer = await fetch(`/v1/blobs/${hash}`, { signal: stop.signal });
    if (!answer.ok) return;
    const preview = await answer.json();
    const known = datasets.get(preview.dataset) ?? { parts: new Map(), whole: null };
    if (isWhole) known.whole = preview;
    else known.parts.set(preview.first, preview);
    for (const first of known.parts.keys()) { if (known.parts.size <= MOST_PREVIEWS) break; known.parts.delete(first); }
    datasets.set(preview.dataset, known);
    chosen ??= preview.dataset;
    plan();
  }

  const plan = () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(draw); };

  function draw() {
    const known = datasets.get(chosen);
    if (!known) return;
    none.hidden = true;
    body.hidden = false;
    const names = [...datasets.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    if (!picks.contains(document.activeElement)) picks.replaceChildren(choice("Dataset", names.map((name) => [name, name]), chosen, (next) => { chosen = next; plan(); }));
    const parts = [...known.parts.values()].sort((a, b) => a.first - b.first);
    const all = parts.length ? parts : [known.whole];
    paint(canvas, all);
    const frames = all.reduce((sum, part) => sum + part.frames, 0);
    const last = all.at(-1);
    tip.textContent = `${counted(frames, "frame")} up to number ${count(last.first + last.frames - 1)}, from top to bottom; across ${last.radial.length ? `${number(last.radial[0])} to ${number(last.radial.at(-1))} ` : ""}${last.unit}. Square roots: bright is much.`;
    const whole = known.whole ?? averaged(all, frames);
    drawMean(whole);
    drawPeaks(whole);
  }

  function drawMean(whole) {
    const rings = new Array(whole.radial.length).fill(null);
    for (const ring of whole.rings) {
      const at = nearest(whole.radial, ring.position);
      rings[at] = whole.mean[at];
    }
    mean.update([whole.radial, whole.mean, rings]);
    average.querySelector("h2").textContent = `Mean of ${counted(whole.frames, "frame")}`;
  }

  function drawPeaks(whole) {
    const step = (whole.radial.at(-1) - whole.radial[0]) / Math.max(whole.radial.length - 1, 1);
    const near = (place) => whole.peaks.reduce((best, peak) => (Math.abs(peak.position - place) < Math.abs((best?.position ?? Infinity) - place) ? peak : best), null);
    const rows = whole.rings.length
      ? whole.rings.slice(0, 40).map((ring) => {
        const peak = near(ring.position);
        const is = peak && Math.abs(peak.position - ring.position) < 4 * step ? peak : null;
        return [ring.hkl ? ring.hkl.join(" ") : "?", number(ring.position), is ? number(is.position) : "–", is ? number(is.position - ring.position) : "–"];
      })
      : whole.peaks.map((peak, at) => [String(at + 1), number(peak.position), number(peak.intensity)]);
    const heads = whole.rings.length ? [`${whole.calibrant} ring`, "Expected", "Found", "Difference"] : ["Peak", "Position", "Intensity"];
    peaks.replaceChildren(rows.length
      ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Peaks" }, h("table", {}, h("thead", {}, h("tr", {}, heads.map((head, at) => h("th", { scope: "col", class: at ? "number" : null }, head)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: at ? "number" : null }, cell)))))))
      : h("p", { class: "quiet" }, "No peak rises out of its surroundings."));
  }

  // Of a dataset that is split, its frames are the tasks of a job before this one.
  const stops = [job.id, ...job.work.after].map((id) => follow(id, take));
  const theme = matchMedia("(prefers-color-scheme: dark)");
  theme.addEventListener("change", plan);
  return () => { stop.abort(); stops.forEach((one) => one()); cancelAnimationFrame(frame); theme.removeEventListener("change", plan); mean.end(); };
}

/** The mean of parts, each counted by its frames; peaks are those of the newest part. */
function averaged(parts, frames) {
  const last = parts.at(-1);
  const mean = last.radial.map((_, at) => parts.reduce((sum, part) => sum + (part.mean[at] ?? 0) * part.frames, 0) / Math.max(frames, 1));
  return { ...last, mean, frames };
}

function nearest(values, wanted) {
  let best = 0;
  values.forEach((value, at) => { if (Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = at; });
  return best;
}

// Viridis at five places, as the pictures of results have it.
const SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

/** Each part's rows in the places of its frames. */
function paint(canvas, parts) {
  const rows = parts.flatMap((part) => part.rows).slice(-PICTURE_ROWS);
  const columns = Math.max(...rows.map((row) => row.length), 1);
  const roots = rows.map((row) => row.map((value) => (value === null ? null : Math.sqrt(Math.max(value, 0)))));
  const sorted = Float64Array.from(roots.flat().filter((value) => value !== null)).sort();
  const [low, high] = [sorted[Math.floor(.01 * (sorted.length - 1))] ?? 0, sorted[Math.floor(.995 * (sorted.length - 1))] ?? 1];
  canvas.width = columns;
  canvas.height = Math.max(rows.length, 1);
  canvas.style.height = `${Math.min(420, Math.max(120, rows.length * 4))}px`;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  roots.forEach((row, y) => row.forEach((value, x) => {
    const at = 4 * (y * columns + x);
    if (value === null) return;
    image.data.set([...colour((value - low) / (high - low || 1)), 255], at);
  }));
  context.putImageData(image, 0, 0);
  canvas.setAttribute("aria-label", `${rows.length} patterns of ${columns} values, one below the other`);
}

function colour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1);
  const index = Math.min(Math.floor(place), SCALE.length - 2);
  return SCALE[index].map((from, channel) => Math.round(from + (SCALE[index + 1][channel] - from) * (place - index)));
}
