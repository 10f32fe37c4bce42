// Pools of Python workers: jobs whose tasks are workers.

import { h, tag } from "../dom.js";
import { count, moment } from "../format.js";
import { watch } from "../live.js";
import { table } from "../table.js";

export default {
  title: () => "Pools",
  show(main) {
    const list = table({
      caption: "The pools", id: (job) => job.id, sort: "opened", down: true, open: (job) => `#/job/${job.id}`, empty: "No pool is open. A program opens one with Pool, of the Python package nodectl.",
      columns: [
        { key: "name", title: "Pool", value: (job) => job.name, show: (job) => h("a", { class: "main", href: `#/job/${job.id}` }, job.name) },
        { key: "phase", title: "State", value: (job) => job.phase, show: (job) => tag(job.phase) },
        { key: "workers", title: "Workers", number: true, value: (job) => job.workers, show: (job) => count(job.workers) },
        { key: "user", title: "User", value: (job) => job.user, show: (job) => job.user },
        { key: "node", title: "Opened at", value: (job) => job.submitter_name, show: (job) => job.submitter_name },
        { key: "opened", title: "Since", value: (job) => job.submitted_ms, show: (job) => moment(job.submitted_ms) },
      ],
    });
    main.append(h("div", { class: "head" }, h("h1", {}, "Pools")), h("section", { class: "card" }, list.element));
    return watch("/v1/jobs", (body, status) => { if (status === 200) list.update(body.filter((job) => job.workers !== undefined)); });
  },
};
