// Pictures of numbers: curves and points by uPlot, small curves and parallel coordinates as SVG.

import { h, s } from "./dom.js";
import { number } from "./format.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const MOST_LINES = 1000;

/**
 * A chart that keeps the width of its place. series: [{ name, points }], several over one x axis.
 * Gives { element, update(data), end() }; data is uPlot's: [x, y1, y2, ...].
 */
export function chart({ label, series, x = "", time = false, points = false, height = 240, format = number, logX = false, logY = false, colours = [] }) {
  const place = h("div", { class: "plot", role: "img", "aria-label": label });
  let plot = null;
  let data = null;
  const draw = () => {
    const width = place.clientWidth;
    if (!data || width < 50) return;
    plot?.destroy();
    const axis = { stroke: style("--quiet"), font: `12px ${style("--text")}`, grid: { stroke: style("--line"), width: 1 }, ticks: { show: false } };
    const all = logY ? data.slice(1).flat().filter((value) => typeof value === "number") : [];
    const steep = isSteep(all);
    const lines = series.map((name, at) => [name, style(colours[at] ?? `--series-${(at % 5) + 1}`)]).map(([name, colour]) => ({
      label: name, stroke: colour, width: 1.75, spanGaps: false, value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
      paths: points ? () => null : undefined, points: { show: points || data[0].length < 30, size: points ? 6 : 5, fill: points ? colour : undefined },
    }));
    plot = new uPlot({
      width, height, series: [{ label: x || "x", value: time ? undefined : (_, value) => (value === null || value === undefined ? "–" : number(value)) }, ...lines],
      scales: { x: { time, distr: logX ? 3 : 1 }, y: steep ? { distr: 3 } : {} }, padding: [10, 12, 0, 0],
      axes: [{ ...axis, size: 28, values: time ? undefined : (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))), label: x || undefined, labelSize: 22, labelFont: axis.font }, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) }],
      cursor: { drag: { x: true, y: false } },
    }, data, place);
  };
  const resized = new ResizeObserver(() => { if (plot) plot.setSize({ width: place.clientWidth, height }); else draw(); });
  resized.observe(place);
  const theme = matchMedia("(prefers-color-scheme: dark)");
  theme.addEventListener("change", draw);
  return {
    element: place,
    update(next) { data = next; if (plot && plot.data.length === next.length && next[0].length >= 30 && plot.data[0].length >= 30) plot.setData(next); else draw(); },
    end() { resized.disconnect(); theme.removeEventListener("change", draw); plot?.destroy(); },
  };
}

/** A small curve of values from 0 to `most`; null is a gap. */
export function spark(values, most, label) {
  const top = values.reduce((top, value) => Math.max(top, value ?? 0), Math.max(most, 1e-9));
  const step = 300 / Math.max(values.length - 1, 1);
  let line = "";
  let area = "";
  let start = null;
  values.forEach((value, at) => {
    const x = (at * step).toFixed(1);
    if (value === null) {
      if (start !== null) area += `L${((at - 1) * step).toFixed(1)} 40Z`;
      start = null;
      return;
    }
    const y = (38.5 - (36 * value) / top).toFixed(1);
    line += `${start === null ? "M" : "L"}${x} ${y}`;
    area += start === null ? `M${x} 40L${x} ${y}` : `L${x} ${y}`;
    start ??= at;
  });
  if (start !== null) area += "L300 40Z";
  return s("svg", { class: "spark", viewBox: "0 0 300 40", preserveAspectRatio: "none", role: "img", "aria-label": label }, s("path", { class: "area", d: area }), s("path", { d: line }));
}

/**
 * Parallel coordinates. axes: [{ name, values }] with one value a line; `grey` says which lines are
 * of tasks that were given up; `tone` is 0 (best) to 1 for the others.
 */
export function parallel(axes, grey, tone) {
  const [width, height, left, top] = [920, 300, 60, 34];
  const gap = (width - 2 * left) / Math.max(axes.length - 1, 1);
  const scaled = axes.map(({ values }) => {
    const words = values.some((value) => typeof value !== "number");
    const kinds = words ? [...new Set(values.map(String))].sort() : null;
    const [low, high] = words ? [0, Math.max(kinds.length - 1, 1)] : [Math.min(...values), Math.max(...values)];
    const spread = high - low || 1;
    const logarithmic = !words && low > 0 && high / low > 50;
    const part = (value) => logarithmic ? Math.log(value / low) / Math.log(high / low) : ((words ? kinds.indexOf(String(value)) : value) - low) / spread;
    const ends = words ? [kinds[0], kinds.at(-1)] : [number(low), number(high)];
    return { at: values.map((value) => top + (1 - part(value)) * (height - top - 30)), ends, logarithmic };
  });
  const lines = grey.map((_, row) => row).slice(-MOST_LINES).sort((a, b) => Number(grey[b]) - Number(grey[a]) || tone[b] - tone[a]);
  const paths = lines.map((row) => {
    const path = s("path", { d: scaled.map(({ at }, axis) => `${axis ? "L" : "M"}${left + axis * gap} ${at[row].toFixed(1)}`).join("") });
    path.style.stroke = grey[row] ? "var(--stopped)" : `color-mix(in oklab, var(--series-2) ${Math.round(100 * (1 - tone[row]))}%, var(--series-4))`;
    path.style.strokeWidth = grey[row] ? "1" : "1.5";
    path.style.opacity = grey[row] ? ".3" : String(.9 - .55 * tone[row]);
    return path;
  });
  const marks = scaled.flatMap(({ ends, logarithmic }, at) => {
    const x = left + at * gap;
    const word = (y, text, kind) => s("text", { x, y, "text-anchor": "middle", class: kind }, text.length > 16 ? `${text.slice(0, 15)}…` : text);
    const line = s("path", { d: `M${x} ${top}V${height - 30}` });
    line.style.stroke = "var(--line-strong)";
    return [line, word(14, axes[at].name + (logarithmic ? " (log)" : "")), word(28, ends[1], "quiet"), word(height - 12, ends[0], "quiet")];
  });
  return s("svg", { class: "picture whole", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Parallel coordinates of ${axes.map((axis) => axis.name).join(", ")}` }, paths, marks);
}

/** Whether numbers are so far apart that only a logarithm shows the small ones. */
function isSteep(values) {
  let [low, high] = [Infinity, 0];
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  return low > 0 && high / low > 100;
}
