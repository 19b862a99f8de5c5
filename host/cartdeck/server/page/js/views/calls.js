// Owns the view of calls: the last of them as bars of their stages, the newest on top.

import { KeyedList, element, oncePerFrame, setAttribute, setText } from "../dom.js";
import { count, seconds } from "../format.js";
import { elapsedS, live } from "../live.js";
import { STAGES, callRow } from "./call_row.js";

const MOST_SHOWN = 60;

export function callsView(section) {
  const filter = element("input", { type: "search", id: "call-filter", placeholder: "model, cap, state or code", autocomplete: "off", spellcheck: "false" });
  const found = element("p", { class: "muted", role: "status" });
  const pause = element("button", { type: "button", "aria-pressed": "false", text: "Hold still" });
  const scale = element("p", { class: "muted scale" });
  const legend = element("ul", { class: "legend", "aria-label": "Stages" },
    ...STAGES.map(([stage, title]) => element("li", {}, element("span", { class: "swatch", "data-stage": stage }), title)));
  const rows = element("ol", { class: "calls plain", "aria-label": "The last calls, the newest first" });
  const empty = element("div", { class: "empty" },
    element("p", {}, element("strong", { text: "No call yet." })),
    element("p", { text: "What clients ask for appears here as it happens: try the playground, or send a request to /v1/chat/completions." }));
  section.append(
    element("div", { class: "row tools" }, element("label", { for: "call-filter", text: "Filter" }), filter, found, element("span", { class: "spring" }), pause),
    element("div", { class: "row legend-row" }, legend, scale), rows, empty);

  let isShown = false;
  let isHeld = false;
  let timer = 0;
  const list = new KeyedList(rows, () => callRow());
  const render = () => {
    if (!isShown || isHeld) return;
    const words = filter.value.trim().toLowerCase();
    const all = [...live.calls.values()].reverse().filter((call) => !words || textOf(call).includes(words));
    const shown = all.slice(0, MOST_SHOWN);
    const longestS = scaleOf(Math.max(0.05, ...shown.map(elapsedS)));
    list.render(shown.map((call) => [call.number, { call, longestS }]));
    setText(scale, shown.length ? `a full bar is ${seconds(longestS)}` : "");
    setText(found, shown.length ? `${count(all.length, "call")}${all.length > shown.length ? `, the last ${shown.length} are shown` : ""}` : "");
    setAttribute(empty, "hidden", live.calls.size > 0);
    clearTimeout(timer);
    if (shown.some((call) => call.state === "open")) timer = setTimeout(renderSoon, 250);
  };
  const renderSoon = oncePerFrame(render);
  live.addEventListener("calls", renderSoon);
  live.addEventListener("state", renderSoon);
  filter.addEventListener("input", renderSoon);
  pause.addEventListener("click", () => {
    isHeld = !isHeld;
    setAttribute(pause, "aria-pressed", String(isHeld));
    setText(pause, isHeld ? "Go on" : "Hold still");
    render();
  });
  return {
    show: () => {
      isShown = true;
      render();
    },
    hide: () => {
      isShown = false;
      clearTimeout(timer);
    },
  };
}

function textOf(call) {
  return `${call.model ?? ""} ${call.cap} ${call.cartridge} ${call.state} ${call.error?.code ?? ""}`.toLowerCase();
}

/** A round length, so that bars do not stretch with every call: 1, 1.5, 2, 3, 5, 7.5, 10 … seconds. */
function scaleOf(longestS) {
  const power = 10 ** Math.floor(Math.log10(longestS));
  return power * ([1, 1.5, 2, 3, 5, 7.5, 10].find((one) => one * power >= longestS) ?? 10);
}
