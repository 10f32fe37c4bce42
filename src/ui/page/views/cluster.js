// The nodes: as cards with their load, or as a table.

import { action } from "../actions.js";
import { spark } from "../charts.js";
import { choice, figures, h, segments, tag, track } from "../dom.js";
import { bytes, count, number } from "../format.js";
import { read, watch } from "../live.js";
import { table } from "../table.js";

let as = "cards";
let series = "cpu";
const SERIES = [["cpu", "Processor"], ["memory_bytes", "Memory"], ["network_received_bytes_per_s", "Network in"], ["network_sent_bytes_per_s", "Network out"], ["disk_read_bytes_per_s", "Disk read"], ["disk_written_bytes_per_s", "Disk written"], ["tasks_running", "Tasks"]];

// Of 15 minutes; and so many of the newest seconds, of which a page may miss a few.
const [STEPS, NEWEST] = [899, 10];

export default {
  title: () => "Cluster",
  show(main) {
    const numbers = h("div");
    const place = h("div");
    let nodes = [];
    let versions = "";
    const histories = new Map();
    const cards = new Map();
    const pick = choice("Last 15 minutes of", SERIES, series, (chosen) => { series = chosen; draw(); });
    pick.hidden = true;
    const list = table({
      caption: "The nodes", id: (node) => node.id, sort: "name",
      columns: [
        { key: "name", title: "Node", value: (node) => node.name, show: (node) => node.name },
        { key: "state", title: "State", value: (node) => state(node)[1], show: (node) => tag(...state(node)) },
        { key: "load", title: "Load", number: true, value: (node) => node.load?.load_average, show: (node) => (node.load ? node.load.load_average.toFixed(2) : "–") },
        { key: "cpus", title: "Cores", number: true, value: (node) => node.resources.cpus, show: (node) => number(node.resources.cpus) },
        { key: "memory", title: "Memory", number: true, value: (node) => node.resources.memory_bytes, show: (node) => bytes(node.resources.memory_bytes) },
        { key: "gpus", title: "GPUs", number: true, value: (node) => node.resources.gpus, show: (node) => (node.seeks_gpus ? "looking" : number(node.resources.gpus)) },
        { key: "running", title: "Running", number: true, value: (node) => node.load?.running, show: (node) => (node.load ? count(node.load.running) : "–") },
        { key: "queued", title: "Waiting", number: true, value: (node) => node.load?.queued, show: (node) => (node.load ? count(node.load.queued) : "–") },
        { key: "version", title: "Version", value: (node) => node.version, show: (node) => node.version },
        { key: "labels", title: "Labels", show: (node) => Object.entries(node.labels).map(([key, value]) => `${key}=${value}`).join(", ") },
      ],
    });
    const grid = h("div", { class: "cards" });
    const whole = h("section", { class: "card" }, list.element);
    main.append(
      h("div", { class: "head" }, h("h1", {}, "Cluster"), h("div", { class: "controls push" }, pick, segments("Show nodes as", [["cards", "Cards"], ["table", "Table"]], as, (chosen) => { as = chosen; draw(); }))),
      numbers, place,
    );

    function draw() {
      const alive = nodes.filter((node) => node.alive);
      const sum = (of) => alive.reduce((all, node) => all + (of(node) ?? 0), 0);
      versions = [...new Set(alive.map((node) => node.version))].sort().at(-1);
      const away = nodes.filter((node) => !node.alive && !node.left).length;
      numbers.replaceChildren(figures([
        ["Nodes", count(alive.length), away ? `${away} away` : "", away ? "bad" : ""],
        ["Cores", number(sum((node) => node.resources.cpus))],
        ["Memory", bytes(sum((node) => node.resources.memory_bytes))],
        ["GPUs", number(sum((node) => node.resources.gpus))],
        ["Tasks that run", count(sum((node) => node.load?.running)), `${count(sum((node) => node.load?.queued))} wait`],
      ]));
      if (as === "table") {
        list.update(nodes);
        if (place.firstChild !== whole) place.replaceChildren(whole);
        return;
      }
      const sorted = [...nodes].sort((a, b) => Number(b.alive) - Number(a.alive) || a.name.localeCompare(b.name, "en", { numeric: true }));
      const shown = sorted.map((node) => {
        const look = JSON.stringify([node, series, histories.get(node.name)?.end_ms, versions]);
        const old = cards.get(node.id);
        if (old?.look === look) return old.element;
        // A button that has the focus is not taken away from under it.
        if (old?.element.contains(document.activeElement)) return old.element;
        const element = nodeCard(node, histories.get(node.name), versions);
        cards.set(node.id, { look, element });
        return element;
      });
      if (shown.length !== grid.children.length || shown.some((element, at) => grid.children[at] !== element)) grid.replaceChildren(...shown);
      if (place.firstChild !== grid) place.replaceChildren(grid);
    }

    const unwatch = [];
    let left = false;
    const followed = new Set();
    function followHistory(node) {
      if (followed.has(node.name) || followed.size >= 24 || !node.alive) return;
      followed.add(node.name);
      const path = `/v1/history?node=${encodeURIComponent(node.name)}&span=15m`;
      const take = (history) => {
        if (left) return;
        pick.hidden = false;
        histories.set(node.name, history);
        draw();
      };
      // All of it once, then the newest steps.
      const whole = () => read(path).then(take, () => {});
      const stop = watch(`${path}&steps=${NEWEST}`, (body, status) => {
        // A node that keeps none has no chart, and is not asked again.
        if (status === 404) queueMicrotask(stop);
        if (status !== 200) return;
        const longer = histories.has(node.name) ? continued(histories.get(node.name), body) : null;
        if (longer) take(longer);
        else whole();
      });
      unwatch.push(stop);
    }
    unwatch.push(watch("/v1/nodes", (body, status) => {
      if (status !== 200) return;
      nodes = body;
      nodes.forEach(followHistory);
      draw();
    }));
    return () => { left = true; unwatch.forEach((stop) => stop()); };
  },
};

/** A node's history with its newest steps behind it; null if there is a gap between them. */
function continued(history, newest) {
  const fresh = Math.round((newest.end_ms - history.end_ms) / (1000 * newest.step_s));
  if (fresh < 0 || fresh > newest.series.cpu.length) return null;
  const series = Object.fromEntries(Object.entries(history.series).map(([name, values]) =>
    [name, fresh ? [...values.slice(Math.max(0, values.length + fresh - STEPS)), ...newest.series[name].slice(-fresh)] : values]));
  return { ...newest, series };
}

function state(node) {
  if (node.left) return ["stopped", "left"];
  if (!node.alive) return ["dead", "away"];
  if (node.problem) return ["dead", "in trouble"];
  if (node.draining) return ["closed", node.closed ? node.closed.state.replace("_", " ") : "draining"];
  return node.load?.running ? ["running", "working"] : ["done", "ready"];
}

function nodeCard(node, history, newest) {
  const { load, resources } = node;
  const meter = (name, part, whole, text) => h("div", { class: "meter" }, h("span", {}, name), track([[name === "Tasks" ? "running" : part / whole > .9 ? "hot" : "", part]], whole, `${name}: ${text}`), h("span", {}, text));
  const values = history?.series?.[series];
  const most = { cpu: 1, memory_bytes: resources.memory_bytes, tasks_running: resources.cpus }[series] ?? 0;
  const labels = Object.entries(node.labels).map(([key, value]) => h("span", { class: "tag plain" }, `${key}=${value}`));
  const drain = action({
    title: node.draining ? `Give ${node.name} work again?` : `Drain ${node.name}?`, verb: node.draining ? "Give work again" : "Drain", path: () => "/v1/drain", body: () => ({ node: node.id, on: !node.draining }),
    text: () => (node.draining ? `${node.name} gets tasks again as soon as it has room.` : `${node.name} gets no new tasks. The ${load?.running ?? 0} that run there go on to their ends, and other nodes get what waits there.`),
    said: () => (node.draining ? `${node.name} takes work again.` : `${node.name} takes no new work.`),
  });
  return h("article", { class: "card", "aria-label": `Node ${node.name}` },
    h("header", {}, h("h2", {}, node.name, node.this_node ? h("span", { class: "quiet small" }, "  this node") : null), tag(...state(node))),
    node.problem ? h("p", { class: "note bad" }, node.problem) : null,
    node.closed ? h("p", { class: "note" }, `${node.name} ${node.closed.why}`) : null,
    values?.length ? spark(values, most, `${SERIES.find(([key]) => key === series)[1]} over the last 15 minutes`) : null,
    node.alive && load ? h("div", {},
      meter("Load", load.load_average, resources.cpus, `${load.load_average.toFixed(1)} of ${number(resources.cpus)}`),
      meter("Memory", load.memory_used_bytes, resources.memory_bytes, `${bytes(load.memory_used_bytes)} of ${bytes(resources.memory_bytes)}`),
      meter("Tasks", load.running, Math.max(resources.cpus, load.running), `${count(load.running)} run, ${count(load.queued)} wait`)) : null,
    node.gpus.length ? h("ul", { class: "sentences small" }, node.gpus.map((gpu) => h("li", { class: gpu.used ? "yes" : null }, gpu.name, h("span", { class: "quiet" }, ` ${bytes(gpu.memory_bytes)}${gpu.used ? "" : ", not for tasks"}`)))) : null,
    h("div", { class: "tags" }, h("span", { class: `tag plain ${node.version === newest || !node.alive ? "" : "waiting"}` }, node.version === newest ? `v${node.version}` : `v${node.version}, others have v${newest}`), labels),
    load?.jobs.length ? h("p", { class: "small quiet" }, "Works for ", load.jobs.slice(0, 4).flatMap((job, at) => [at ? ", " : "", h("a", { href: `#/job/${job.job}` }, job.name)])) : null,
    node.alive ? h("div", { class: "controls" }, drain) : null);
}
