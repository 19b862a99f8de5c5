// Owns one cartridge on the page: what it is, its sessions as rows, its log when it is asked for.

import { KeyedList, element, newId, setAttribute, setText } from "../dom.js";
import { bytes, clock, count, instanceParts } from "../format.js";
import { problemText } from "../problem.js";
import { logPanel } from "./log_panel.js";

const COLUMNS = ["Session", "State", "Requests", "Memory", "Calls", "Restarts"];

export function cartridgeCard(name) {
  const version = element("span", { class: "muted" });
  const badge = element("span", { class: "badge" });
  const caps = element("p", { class: "muted caps" });
  const title = element("h2", { id: newId("cartridge"), text: name });
  const body = element("tbody");
  const headings = COLUMNS.map((column) => element("th", { scope: "col", text: column }));
  const table = element("table", { "aria-labelledby": title.id }, element("thead", {}, element("tr", {}, ...headings)), body);
  const scroller = element("div", { class: "scroller", tabindex: "0", role: "group", "aria-labelledby": title.id }, table);
  const empty = element("p", { class: "muted none" });
  const log = logPanel(name);
  const node = element("article", { class: "card", "aria-labelledby": title.id },
    element("header", { class: "row" }, title, version, badge, element("span", { class: "spring" }), log.button),
    caps, scroller, empty, log.node);
  const rows = new KeyedList(body, () => sessionRow());
  return {
    node,
    onGone: log.close,
    update: ({ cartridge, sessions, isLeftOut }) => {
      setAttribute(node, "hidden", isLeftOut);
      const running = sessions.filter(([, one]) => one.pid !== null).length;
      setText(version, cartridge.version);
      setText(badge, cartridge.is_available ? (running ? `${running} running` : "idle") : "not available");
      badge.dataset.tone = cartridge.is_available ? (running ? "good" : "calm") : "warn";
      setText(caps, cartridge.caps.join(" · "));
      rows.render(sessions);
      setAttribute(scroller, "hidden", sessions.length === 0);
      setAttribute(empty, "hidden", sessions.length > 0);
      setText(empty, cartridge.is_available
        ? "No process: the first call starts one."
        : `It cannot run here: ${cartridge.install.join("; ") || "something that it needs is missing"}.`);
    },
  };
}

function sessionRow() {
  const name = element("strong");
  const rest = element("span", { class: "muted rest" });
  const error = element("p", { class: "row-error", hidden: true });
  const state = element("span", { class: "state" });
  const pid = element("span", { class: "muted" });
  const figures = COLUMNS.slice(2).map((column) => element("td", { "data-label": column }));
  const node = element("tr", {},
    element("th", { scope: "row" }, name, rest, error), element("td", { "data-label": "State" }, state, pid), ...figures);
  return {
    node,
    update: (one) => {
      const parts = instanceParts(one.instance);
      setText(name, parts.name);
      setText(rest, [parts.rest, one.class && one.class !== "standard" ? one.class : ""].filter(Boolean).join(" "));
      setAttribute(name, "title", one.instance || null);
      setText(state, one.state);
      state.dataset.state = one.state;
      setText(pid, one.pid === null ? "" : `pid ${one.pid}`);
      const [requests, memory, calls, restarts] = figures;
      const open = Object.entries(one.requests).map(([phase, number]) => `${number} ${phase}`).join(", ");
      setText(requests, open || "none");
      setText(memory, bytes(one.rss_bytes));
      setText(calls, one.calls.toLocaleString("en"));
      setText(restarts, String(one.restarts));
      const last = one.last_restart;
      setAttribute(restarts, "title", last ? `${clock(last.at_s)} ${last.code}: ${last.message}` : null);
      showError(error, one.last_error);
    },
  };
}

function showError(node, error) {
  setAttribute(node, "hidden", error === null);
  const text = error === null ? "" : problemText(error);
  if (node.dataset.text === text) return;
  node.dataset.text = text;
  node.replaceChildren(document.createTextNode(text));
  if (error?.log.length) {
    node.append(element("details", {},
      element("summary", { text: `Its last ${count(error.log.length, "line")}` }),
      element("pre", { text: error.log.join("\n") })));
  }
}
