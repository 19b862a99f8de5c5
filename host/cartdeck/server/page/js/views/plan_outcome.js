// Owns what a plan that runs shows beside its graph: a line for each step, the log, the outputs.

import { KeyedList, element, setAttribute, setText } from "../dom.js";
import { problemText } from "../problem.js";

const MOST_LINES = 200;
const MOST_SHOWN = 20_000;
const MOST_NUMBERS = 12;
const TONES = { running: "busy", done: "good", failed: "bad", absent: "warn", skipped: "warn", cancelled: "calm", waiting: "calm" };

export function planOutcome() {
  const steps = element("ul", { class: "steps plain", "aria-label": "Steps" });
  const log = element("div", { class: "log small", role: "log", "aria-live": "off", "aria-label": "Log of the plan", tabindex: "0", hidden: true });
  const outputs = element("div", { class: "stack", "aria-label": "Outputs" });
  const node = element("div", { class: "stack" }, steps, log, outputs);
  const list = new KeyedList(steps, (name) => stepLine(name));
  const states = new Map();
  return {
    node,
    clear: (names) => {
      states.clear();
      for (const name of names) states.set(name, { state: "waiting", words: "", share: null, error: null });
      list.render(states);
      log.replaceChildren();
      log.hidden = true;
      outputs.replaceChildren();
    },
    setStep: (name, change) => {
      states.set(name, { ...(states.get(name) ?? { state: "waiting", words: "", share: null, error: null }), ...change });
      list.render(states);
    },
    addLine: (text) => {
      log.hidden = false;
      log.append(element("div", { class: "line", text }));
      while (log.childElementCount > MOST_LINES) log.firstElementChild.remove();
      log.scrollTop = log.scrollHeight;
    },
    /** `media` has each output's media by its name. */
    showOutputs: (found, media) => outputs.replaceChildren(...Object.entries(found).map(([name, value]) => outputCard(name, value, media.get(name) ?? ""))),
  };
}

function stepLine(name) {
  const badge = element("span", { class: "badge" });
  const words = element("span", { class: "muted" });
  const bar = element("progress", { max: "1", "aria-label": `Progress of ${name}`, hidden: true });
  const error = element("p", { class: "row-error", hidden: true });
  return {
    node: element("li", {}, element("div", { class: "row" }, element("strong", { text: name }), badge, words, element("span", { class: "spring" }), bar), error),
    update: (one) => {
      setText(badge, one.state);
      badge.dataset.tone = TONES[one.state] ?? "calm";
      setText(words, one.words);
      setAttribute(bar, "hidden", one.state !== "running");
      if (one.state === "running" && one.share !== null) bar.value = one.share;
      setText(error, one.error ? problemText(one.error) : "");
      setAttribute(error, "hidden", !one.error);
    },
  };
}

function outputCard(name, value, media) {
  const text = written(value, /;f32\b/.test(media));
  const shown = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… ${(text.length - MOST_SHOWN).toLocaleString("en")} characters more` : text;
  return element("article", { class: "card" }, element("h3", { text: name }), element("pre", { tabindex: "0", text: shown }));
}

/** An output as it is read best: text as it is, a sequence line by line, vectors as numbers, bytes as base64, the rest as JSON. */
function written(value, isVector) {
  if (typeof value?.text === "string") return value.text;
  if (typeof value?.base64 === "string") return (isVector && numbers(value.base64)) || `base64: ${value.base64}`;
  if (Array.isArray(value?.items)) return value.items.map((one) => (typeof one === "string" ? one : written(one, isVector))).join("\n");
  return JSON.stringify(value, null, 2);
}

/** How many 32-bit floats there are, and the first of them; "" for what is none. */
function numbers(base64) {
  const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
  if (bytes.length === 0 || bytes.length % 4) return "";
  const found = [...new Float32Array(bytes.buffer)];
  const first = found.slice(0, MOST_NUMBERS).map((one) => one.toFixed(4)).join(", ");
  return `${found.length.toLocaleString("en")} numbers: ${first}${found.length > MOST_NUMBERS ? ", …" : ""}`;
}
