// Tables that are sorted by their heads and change in place: a row that stays the same is not
// touched, so that what is focused or selected stays so.

import { h } from "./dom.js";

/**
 * columns: { key, title, value(row) for sorting, show(row) for reading, number, wide }.
 * Where rows come sorted, `turned(key, down)` is told of a head that was pressed instead.
 * Gives { element, update(rows) }.
 */
export function table({ caption, columns, id, open, sort, down = false, turned = null, empty = "Nothing here." }) {
  let rows = [];
  let by = columns.find((column) => column.key === sort);
  const body = h("tbody");
  const heads = columns.map((column) => {
    const text = column.value ? h("button", { type: "button", onclick: () => turn(column) }, column.title) : column.title;
    return h("th", { scope: "col", class: column.number ? "number" : null }, text);
  });
  const none = h("p", { class: "empty", hidden: true }, empty);
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body), none);
  const kept = new Map();

  function turn(column) {
    down = by === column ? !down : Boolean(column.number);
    by = column;
    draw();
    turned?.(column.key, down);
  }

  function line(row) {
    const look = JSON.stringify(row);
    const key = id(row);
    const old = kept.get(key);
    if (old?.look === look) return old.tr;
    const cells = columns.map((column) => h("td", { class: [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || null }, column.show(row)));
    const tr = old?.tr ?? h("tr", open ? { class: "open", onclick: (event) => { if (!event.target.closest("a, button") && !getSelection().toString()) location.hash = open(tr.row); } } : {});
    tr.row = row;
    tr.replaceChildren(...cells);
    kept.set(key, { look, tr });
    return tr;
  }

  function draw() {
    heads.forEach((head, at) => {
      if (columns[at] === by) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const sorted = by && !turned ? [...rows].sort((a, b) => order(by.value(a), by.value(b)) * (down ? -1 : 1)) : rows;
    const lines = sorted.map(line);
    const present = new Set(rows.map(id));
    for (const key of kept.keys()) if (!present.has(key)) kept.delete(key);
    if (lines.length !== body.children.length || lines.some((tr, at) => body.children[at] !== tr)) {
      const focused = document.activeElement;
      body.replaceChildren(...lines);
      if (focused && body.contains(focused)) focused.focus({ preventScroll: true });
    }
    none.hidden = rows.length > 0;
  }

  return { element, update: (next) => { rows = next; draw(); } };
}

/** Numbers before words, and nothing last. */
export function order(a, b) {
  const [ra, rb] = [rank(a), rank(b)];
  if (ra !== rb) return ra - rb;
  if (ra === 0) return a - b;
  return ra === 1 ? String(a).localeCompare(String(b), "en", { numeric: true }) : 0;
}

function rank(value) {
  if (typeof value === "number" && !Number.isNaN(value)) return 0;
  return value === null || value === undefined || value === "" || Number.isNaN(value) ? 2 : 1;
}
