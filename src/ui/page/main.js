// The page's frame: which view is shown, and whether the connection holds.

import { h, showCurrent } from "./dom.js";
import { onState, watch } from "./live.js";
import cluster from "./views/cluster.js";
import events from "./views/events.js";
import job from "./views/job.js";
import jobs from "./views/jobs.js";
import launches from "./views/launches.js";
import pools from "./views/pools.js";
import task from "./views/task.js";
import why from "./views/why.js";

const VIEWS = [["cluster", "Cluster", cluster], ["jobs", "Jobs", jobs], ["pools", "Pools", pools], ["launches", "Launches", launches], ["why", "Why", why], ["events", "Events", events]];
const main = document.getElementById("main");
const links = VIEWS.map(([name, title]) => h("a", { href: `#/${name}` }, title));
const nav = document.getElementById("nav");
nav.append(...links);

let leave = () => {};
let shown = null;

function show() {
  if (!location.hash.startsWith("#/")) {
    // A link within the page, such as "skip to the content".
    if (shown) { main.focus(); return; }
    history.replaceState(null, "", "#/cluster");
  }
  let [name, ...rest] = location.hash.slice(2).split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  let view = VIEWS.find(([known]) => known === name)?.[2];
  if (name === "job" && rest.length) [view, name] = [rest[1] === "task" ? task : job, "jobs"];
  if (!view) [view, name] = [cluster, "cluster"];
  leave();
  links.forEach((link, at) => { if (VIEWS[at][0] === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current"); });
  showCurrent(nav);
  main.replaceChildren();
  document.title = `${view.title(rest)} · nodectl`;
  leave = view.show(main, rest) ?? (() => {});
  if (shown !== null && shown !== `${name}/${rest[0] ?? ""}`) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
  shown = `${name}/${rest[0] ?? ""}`;
}

const link = document.getElementById("link");
let [connection, node] = ["waiting", true];
function tellLink() {
  link.className = `link ${connection === "live" && !node ? "lost" : connection}`;
  if (connection === "lost") link.textContent = "Connection lost; trying again";
  else if (connection === "waiting") link.textContent = "Connecting…";
  else link.textContent = node ? "Live" : "The node does not answer; trying again";
}
onState((state) => { connection = state; tellLink(); });
watch("/v1/node", (body, status) => {
  node = status === 200;
  if (node) document.getElementById("cluster").textContent = body.solo ? body.name : body.cluster;
  tellLink();
});

addEventListener("resize", () => document.querySelectorAll("nav, .tabs").forEach(showCurrent));
addEventListener("hashchange", show);
show();
