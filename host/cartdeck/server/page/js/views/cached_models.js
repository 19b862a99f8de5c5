// Owns the list of models that lie on this machine: asked for when it is first seen, and by its button.

import { KeyedList, element, setAttribute, setText } from "../dom.js";
import { bytes, count } from "../format.js";
import { askJson } from "../http.js";
import { problemBox } from "../problem.js";

export function cachedModels() {
  const button = element("button", { type: "button", text: "Look again" });
  const status = element("p", { class: "muted", role: "status" });
  const problem = problemBox();
  const body = element("tbody");
  const table = element("table", { "aria-label": "Models on this machine", hidden: true },
    element("thead", {}, element("tr", {}, ...["Model", "Size", "Files", "Last used", "Verified"].map((text) => element("th", { scope: "col", text })))), body);
  const empty = element("p", { class: "empty", hidden: true, text: "Nothing was fetched yet. A model is fetched when it is first needed, or by `cartdeck pull SPEC`." });
  const node = element("div", {},
    element("div", { class: "row tools heading" }, element("h2", { text: "On this machine" }), status, element("span", { class: "spring" }), button),
    problem.node, element("div", { class: "scroller" }, table), empty);
  const rows = new KeyedList(body, (key) => cachedRow(key));
  let wasAsked = false;

  async function look() {
    wasAsked = true;
    button.disabled = true;
    problem.clear();
    setText(status, "looking …");
    try {
      const { items } = await askJson("caps/call", { cap: "list-models", stream: false });
      rows.render(items.map((one) => [one.spec + (one.revision ?? ""), one]));
      setAttribute(table, "hidden", items.length === 0);
      setAttribute(empty, "hidden", items.length > 0);
      setText(status, items.length ? `${count(items.length, "model")}, ${bytes(items.reduce((sum, one) => sum + one.size_bytes, 0))}` : "");
    } catch (error) {
      setText(status, "");
      problem.show(error);
    } finally {
      button.disabled = false;
    }
  }

  button.addEventListener("click", look);
  return { node, show: () => { if (!wasAsked) look(); } };
}

function cachedRow() {
  const name = element("th", { scope: "row", class: "spec" });
  const cells = ["Size", "Files", "Last used", "Verified"].map((label) => element("td", { "data-label": label }));
  return {
    node: element("tr", {}, name, ...cells),
    update: (one) => {
      setText(name, one.spec);
      const [size, files, used, verified] = cells;
      setText(size, bytes(one.size_bytes));
      setText(files, one.is_whole ? String(one.files.length) : "not whole");
      setText(used, day(one.last_used));
      setText(verified, day(one.verified));
    },
  };
}

function day(text) {
  return text ? new Date(text).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" }) : "never";
}
