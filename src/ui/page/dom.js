// Elements. Text from tasks and people goes in as text nodes, here and nowhere else: nothing in
// this page sets markup from a string.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Keys that begin with "on" are listeners; null and false are left out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "width%") element.style.width = `${value}%`;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A word for a state, with its colour. */
export const tag = (kind, text = kind) => h("span", { class: `tag ${kind}` }, text);

/** A row of figures: [name, value, small print, class]. */
export function figures(all) {
  return h("dl", { class: "figures" }, all.filter(Boolean).map(([name, value, small, kind]) =>
    h("div", {}, h("dt", {}, name), h("dd", { class: kind || null }, value, small ? h("small", {}, ` ${small}`) : null))));
}

/** A picture that is scrolled where it does not fit. */
export const wide = (picture) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": picture.getAttribute("aria-label") }, picture);

/** Scrolls a row of links so that the current one is seen. */
export function showCurrent(row) {
  const link = row.querySelector("[aria-current]");
  if (link) row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
}

/** Parts of a whole as a bar: [[class, part], ...]. */
export function track(parts, whole, label) {
  const of = Math.max(whole, 1e-9);
  return h("div", { class: "track", role: "img", "aria-label": label },
    parts.filter(([, part]) => part > 0).map(([kind, part]) => h("i", { class: kind, "width%": Math.min(100, (100 * part) / of) })));
}

/** Buttons of which one is pressed. */
export function segments(label, options, chosen, onChoose) {
  const buttons = options.map(([value, text]) => h("button", {
    type: "button", "aria-pressed": String(value === chosen),
    onclick: () => {
      buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(options[at][0] === value)));
      onChoose(value);
    },
  }, text));
  return h("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

/** A choice from a list of [value, text]. */
export function choice(label, options, chosen, onChoose) {
  const select = h("select", { onchange: () => onChoose(select.value) },
    options.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text)));
  return h("label", {}, label, select);
}

/** A card with a title. */
export const card = (title, ...children) => h("section", { class: "card" }, h("header", {}, h("h2", {}, title)), children);
