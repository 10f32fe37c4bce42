// The task stream: which task ran where and when, a row for each place on a node. Drawn on a canvas:
// 10,000 tasks are too many elements.

import { h } from "./dom.js";
import { clock, counted, span } from "./format.js";

const COLOURS = { done: "--done", failed: "--failed", stopped: "--stopped", cancelled: "--stopped", running: "--running" };
const LANE = 12;
const MOST_LANES = 24;
const [SECOND, MINUTE, HOUR, DAY] = [1000, 60_000, 3_600_000, 86_400_000];
// Between two times that are written below, in milliseconds.
const STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30].map((seconds) => seconds * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * MINUTE),
  ...[1, 2, 3, 6, 12, 24].map((hours) => hours * HOUR),
];

/** Gives { element, update(bars, note), end() }; bars: { task, node, start, end, status }. */
export function taskStream(openTask) {
  const canvas = h("canvas", { class: "stream", role: "img", "aria-label": "Which task ran where and when" });
  const tip = h("p", { class: "tip" });
  const legend = h("p", { class: "legend" }, ["done", "failed", "stopped", "running"].map((kind) => h("span", {}, h("i", { class: kind }), kind)));
  const element = h("div", {}, canvas, tip, legend);
  let [bars, placed, note, frame] = [[], [], "", 0];
  let shape = null;

  function layOut() {
    const nodes = new Map();
    for (const bar of [...bars].sort((a, b) => a.start - b.start)) {
      if (!nodes.has(bar.node)) nodes.set(bar.node, []);
      const lanes = nodes.get(bar.node);
      // Clocks tell milliseconds: what begins where another ends has its place.
      // When a task that runs began is known to a second or so.
      let lane = lanes.findIndex((end) => end <= bar.start + (bar.status === "running" ? 1500 : 2));
      if (lane < 0) lane = lanes.length < MOST_LANES ? lanes.length : lanes.indexOf(Math.min(...lanes));
      lanes[lane] = Math.max(bar.end, lanes[lane] ?? 0);
      bar.lane = lane;
    }
    return new Map([...nodes].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([node, lanes]) => [node, lanes.length]));
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const nodes = layOut();
    const width = canvas.clientWidth || 600;
    const left = Math.min(120, width / 4);
    const tops = new Map();
    let height = 6;
    for (const [node, lanes] of nodes) { tops.set(node, height); height += lanes * LANE + 10; }
    const axis = height;
    height += 24;
    const scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = `12px ${style.getPropertyValue("--text")}`;
    const from = Math.min(...bars.map((bar) => bar.start));
    const to = Math.max(...bars.map((bar) => bar.end), from + 1);
    const x = (ms) => left + ((ms - from) / (to - from)) * (width - left - 4);
    for (const [node, top] of tops) {
      context.fillStyle = colour("--sunk");
      context.fillRect(left, top, width - left - 4, nodes.get(node) * LANE);
      context.fillStyle = colour("--ink");
      context.fillText(node.length > 14 ? `${node.slice(0, 13)}…` : node, 0, top + 11, left - 8);
    }
    placed = bars.map((bar) => {
      const [begin, end] = [x(bar.start), x(bar.end)];
      const place = { bar, x: begin, y: tops.get(bar.node) + bar.lane * LANE + 1, w: Math.max(end - begin - .6, 1), h: LANE - 2 };
      context.fillStyle = colour(COLOURS[bar.status] ?? "--stopped");
      context.globalAlpha = bar.status === "running" ? .6 : 1;
      context.fillRect(place.x, place.y, place.w, place.h);
      return place;
    });
    context.globalAlpha = 1;
    context.fillStyle = colour("--quiet");
    const most = Math.max(2, Math.min(8, Math.floor((width - left) / 120)));
    const isShort = to - from < 3 * SECOND;
    const steps = isShort ? STEPS : STEPS.filter((ms) => ms >= SECOND);
    const step = steps.find((ms) => (to - from) / ms <= most) ?? Math.ceil((to - from) / most / DAY) * DAY;
    for (let ms = isShort ? from : Math.ceil(from / step) * step; ms <= to; ms += step) {
      const near = x(ms) < left + 30 ? "left" : "center";
      context.textAlign = x(ms) > width - 34 ? "right" : near;
      const digits = Math.max(0, 3 - Math.floor(Math.log10(step)));
      context.fillText(isShort ? `${((ms - from) / SECOND).toFixed(digits)} s` : clock(ms), x(ms), axis + 14);
    }
    shape = { from, to };
    canvas.setAttribute("aria-label", `${counted(bars.length, "task")} on ${counted(nodes.size, "node")} within ${span((to - from) / 1000)}`);
    say(null);
  }

  function say(bar) {
    tip.textContent = bar
      ? `Task ${bar.task} on ${bar.node}: ${bar.status}, ${span((bar.end - bar.start) / 1000)} from ${clock(bar.start)}`
      : note;
  }

  const at = (event) => placed.findLast(({ x, y, w, h: tall }) => event.offsetX >= x - 1 && event.offsetX <= x + w + 1 && event.offsetY >= y && event.offsetY <= y + tall)?.bar;
  canvas.addEventListener("pointermove", (event) => say(at(event)));
  canvas.addEventListener("pointerleave", () => say(null));
  canvas.addEventListener("click", (event) => { const bar = at(event); if (bar) openTask(bar.task); });
  const plan = () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(() => { if (bars.length) draw(); }); };
  const resized = new ResizeObserver(plan);
  resized.observe(element);
  const theme = matchMedia("(prefers-color-scheme: dark)");
  theme.addEventListener("change", plan);
  return {
    element,
    update(next, words) { bars = next; note = words; element.hidden = !bars.length; plan(); },
    end() { resized.disconnect(); theme.removeEventListener("change", plan); cancelAnimationFrame(frame); },
    get shape() { return shape; },
  };
}
