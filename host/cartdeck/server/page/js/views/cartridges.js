// Owns the view of cartridges: a summary, a filter, and a card for each with its sessions and its log.

import { KeyedList, element, oncePerFrame, setAttribute, setText } from "../dom.js";
import { bytes, count } from "../format.js";
import { live } from "../live.js";
import { cartridgeCard } from "./cartridge_card.js";

export function cartridgesView(section) {
  const tiles = summaryTiles();
  const filter = element("input", {
    type: "search", id: "cartridge-filter", placeholder: "name, model, state or pid", autocomplete: "off", spellcheck: "false",
  });
  const found = element("p", { class: "muted", id: "cartridge-found", role: "status" });
  const cards = element("div", { class: "stack" });
  const empty = element("div", { class: "empty", hidden: true },
    element("p", {}, element("strong", { text: "No cartridge is installed." })),
    element("p", { text: "`cartdeck doctor` says what is missing; `cartdeck install` adds one." }));
  const form = element("div", { class: "row tools", role: "search" },
    element("label", { for: "cartridge-filter", text: "Filter" }), filter, found);
  section.append(tiles.node, form, cards, empty);

  let isShown = false;
  const list = new KeyedList(cards, (name) => cartridgeCard(name));
  const render = () => {
    if (!isShown || live.server === null) return;
    tiles.update();
    const words = filter.value.trim().toLowerCase();
    const sessions = sessionsByCartridge(words);
    const all = [...live.cartridges].sort(([one], [other]) => one.localeCompare(other));
    const isShownName = (name) => !words || name.toLowerCase().includes(words) || sessions.has(name);
    list.render(all.map(([name, cartridge]) => [name, { cartridge, sessions: sessions.get(name) ?? [], isLeftOut: !isShownName(name) }]));
    const sum = [...sessions.values()].reduce((total, one) => total + one.length, 0);
    const shown = all.filter(([name]) => isShownName(name)).length;
    setText(found, words ? `${count(sum, "session")} in ${count(shown, "cartridge")}` : "");
    setAttribute(empty, "hidden", live.cartridges.size > 0);
  };
  const renderSoon = oncePerFrame(render);
  live.addEventListener("state", renderSoon);
  filter.addEventListener("input", renderSoon);
  return {
    show: () => {
      isShown = true;
      render();
    },
    hide: () => {
      isShown = false;
    },
  };
}

/** Sessions of each cartridge that has the words: those that run first, then by name. */
function sessionsByCartridge(words) {
  const found = new Map();
  for (const [key, one] of live.sessions) {
    const text = `${one.cartridge} ${one.instance} ${one.state} ${one.pid ?? ""}`.toLowerCase();
    if (words && !text.includes(words)) continue;
    if (!found.has(one.cartridge)) found.set(one.cartridge, []);
    found.get(one.cartridge).push([key, one]);
  }
  for (const sessions of found.values()) {
    sessions.sort(([key, one], [other, two]) => rank(one) - rank(two) || (key < other ? -1 : 1));
  }
  return found;
}

function rank(session) {
  if (session.state === "ended") return 2;
  return session.pid === null ? 1 : 0;
}

function summaryTiles() {
  const figures = ["Memory", "Processes", "Open calls", "Restarts"].map((title) => {
    const value = element("dd", { text: "–" });
    const note = element("dd", { class: "note" });
    return { node: element("div", { class: "tile" }, element("dt", { text: title }), value, note), value, note };
  });
  const [memory, processes, calls, restarts] = figures;
  const meter = element("meter", { min: "0", max: "1", "aria-label": "Memory of the budget", hidden: true });
  memory.node.append(meter);
  const node = element("dl", { class: "tiles" }, ...figures.map((one) => one.node));
  return {
    node,
    update: () => {
      const server = live.server;
      const { used_bytes: used, budget_bytes: budget, waiting } = server.memory;
      setText(memory.value, bytes(server.rss_bytes));
      setText(memory.note, budget ? `${bytes(used)} of ${bytes(budget)} granted` : "no budget is set");
      setAttribute(meter, "hidden", !budget);
      if (budget) meter.value = Math.min(1, used / budget);
      setText(processes.value, String([...live.sessions.values()].filter((one) => one.pid !== null).length));
      setText(processes.note, `${count(server.starts, "start")} since the server began`);
      setText(calls.value, String(server.open_calls));
      setText(calls.note, waiting ? `${waiting} wait for memory` : "none waits for memory");
      setText(restarts.value, String(server.restarts));
      setText(restarts.note, server.restarts ? "the rows below say why" : "nothing had to be replaced");
    },
  };
}
