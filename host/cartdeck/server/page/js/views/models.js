// Owns the view of models: those that are served, with what loads now, and those that lie on this machine.

import { KeyedList, element, oncePerFrame, setAttribute, setText } from "../dom.js";
import { bytes, shortName } from "../format.js";
import { live } from "../live.js";
import { problemText } from "../problem.js";
import { addModel } from "./add_model.js";
import { cachedModels } from "./cached_models.js";
import { phaseBar, stageOf } from "./phase_bar.js";

export function modelsView(section) {
  const served = element("ul", { class: "stack plain" });
  const empty = element("p", { class: "empty", hidden: true, text: "No model has a name here. `cartdeck serve --model NAME=SPEC` gives one, and so does a catalog." });
  const cached = cachedModels();
  section.append(
    element("h2", { text: "Served" }),
    element("p", { class: "lead", text: "What clients can ask for by name. A model is loaded by its first request." }),
    served, empty, addModel(), cached.node);

  let isShown = false;
  const list = new KeyedList(served, (name) => servedModel(name));
  const render = () => {
    if (!isShown || live.server === null) return;
    const loading = loadingCalls();
    const items = [...live.models].map(([name, model]) => [name, { model, call: loading.get(name), sessions: sessionsOf(model) }]);
    for (const [name, call] of loading) {
      if (!live.models.has(name)) items.push([name, { model: { spec: name, kinds: [], more: [], aliases: [], description: "Asked for by its spec.", state: "loading" }, call, sessions: [] }]);
    }
    list.render(items);
    setAttribute(empty, "hidden", items.length > 0);
  };
  const renderSoon = oncePerFrame(render);
  live.addEventListener("state", renderSoon);
  live.addEventListener("calls", renderSoon);
  return {
    show: () => {
      isShown = true;
      render();
      cached.show();
    },
    hide: () => {
      isShown = false;
    },
  };
}

/** The call of each model that is furthest in obtaining or loading it. */
function loadingCalls() {
  const found = new Map();
  for (const call of live.calls.values()) {
    if (call.state !== "open" || call.model === null || !["obtain", "load"].includes(stageOf(call))) continue;
    const other = found.get(call.model);
    if (other === undefined || (stageOf(other) === "obtain" && stageOf(call) === "load")) found.set(call.model, call);
  }
  return found;
}

/** The processes that calls of the model use; those of another name of the same file, with other settings, are not its. */
function sessionsOf(model) {
  return model.sessions.map((key) => live.sessions.get(key)).filter((one) => one !== undefined && one.pid !== null);
}

function servedModel(name) {
  const badge = element("span", { class: "badge" });
  const spec = element("p", { class: "muted spec" });
  const about = element("p", { class: "about" });
  const kinds = element("p", { class: "chips" });
  const memory = element("p", { class: "muted" });
  const bar = phaseBar();
  const error = element("p", { class: "row-error" });
  const node = element("li", { class: "card" },
    element("div", { class: "row" }, element("h3", { text: name }), badge, kinds), about, spec, memory, bar.node, error);
  return {
    node,
    update: ({ model, call, sessions }) => {
      const isUsed = model.state === "ready" || sessions.some((one) => one.calls > 1); // by a plan, say; the first looks whether it answers
      const isLoaded = model.state !== "failed" && isUsed && sessions.length > 0;
      const word = call ? (stageOf(call) === "obtain" ? "obtaining" : "loading") : isLoaded ? "loaded" : model.state === "ready" ? "unloaded" : model.state;
      setText(badge, word);
      badge.dataset.tone = word === "failed" ? "bad" : isLoaded ? "good" : call ? "busy" : "calm";
      setText(spec, model.spec);
      setText(about, model.description);
      setAttribute(about, "hidden", !model.description);
      showChips(kinds, [...model.kinds, ...model.more, ...model.aliases.map((one) => `also ${one}`)]);
      const rss = sessions.reduce((sum, one) => sum + (one.rss_bytes ?? 0), 0);
      setText(memory, sessions.length ? `${bytes(rss)} in ${sessions.map((one) => `${one.cartridge}, pid ${one.pid}`).join("; ")}` : "");
      setAttribute(memory, "hidden", sessions.length === 0);
      setAttribute(bar.node, "hidden", call === undefined);
      if (call) bar.update(call);
      setText(error, model.error ? problemText(model.error) : "");
      setAttribute(error, "hidden", !model.error);
    },
  };
}

function showChips(node, words) {
  const text = words.join("\n");
  if (node.dataset.words === text) return;
  node.dataset.words = text;
  node.replaceChildren(...words.map((word) => element("span", { class: "chip", text: shortName(word) })));
}
