// What the page may change, if the server lets it: each change says first what will happen.

import { h } from "./dom.js";
import { change, read } from "./live.js";

export const about = read("/page/about").catch(() => ({ may_write: false }));

/** A button that asks before it does something; hidden where the page only reads. With `field`, the label of a text that the change takes. */
export function action({ title, text, verb, danger = false, field = null, path, body, said }) {
  const button = h("button", { type: "button", class: danger ? "danger" : null, hidden: true }, verb);
  about.then(({ may_write: may }) => { button.hidden = !may; });
  button.addEventListener("click", () => ask({ title, text: text(), verb, danger, field: field?.(), run: async (typed) => said(await change(path(), body(typed))) }));
  return button;
}

function ask({ title, text, verb, danger, field, run }) {
  const dialog = document.getElementById("ask");
  const outcome = h("p", { role: "status", class: "quiet" });
  const typed = field ? h("textarea", { rows: 6, spellcheck: "false" }) : null;
  const yes = h("button", { type: "button", class: danger ? "danger strong" : "strong" }, verb);
  const no = h("button", { type: "button", onclick: () => dialog.close() }, "Leave it as it is");
  yes.addEventListener("click", async () => {
    yes.disabled = true;
    try {
      outcome.textContent = await run(typed?.value);
      yes.hidden = true;
      if (typed) typed.disabled = true;
      no.textContent = "Close";
    } catch (error) {
      outcome.textContent = `It was not done: ${error.message}`;
      yes.disabled = false;
    }
  });
  dialog.replaceChildren(h("div", {}, h("h2", { id: "ask-title" }, title), h("p", {}, text), typed ? h("label", { class: "stacked" }, field, typed) : null, outcome, h("div", { class: "controls" }, no, yes)));
  dialog.showModal();
  (typed ?? no).focus();
}
