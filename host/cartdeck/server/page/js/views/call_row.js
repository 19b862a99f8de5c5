// Owns one call as a bar: queue, obtain, load, first token, tokens, each as long as it took.

import { KeyedList, element, setAttribute, setText } from "../dom.js";
import { clock, progressText, seconds } from "../format.js";
import { elapsedS } from "../live.js";
import { problemText } from "../problem.js";

export const STAGES = [["queue", "queue"], ["obtain", "obtain"], ["load", "load"], ["first", "first token"], ["tokens", "tokens"], ["plan", "plan"]];
const TITLES = Object.fromEntries(STAGES);
const TONES = { open: "busy", done: "good", failed: "bad", cancelled: "calm" };

export function callRow() {
  const title = element("strong");
  const about = element("span", { class: "muted" });
  const badge = element("span", { class: "badge" });
  const total = element("span", { class: "total" });
  const bar = element("div", { class: "bar", role: "img" });
  const words = element("p", { class: "muted stages" });
  const error = element("p", { class: "row-error", hidden: true });
  const node = element("li", {}, element("div", { class: "row call-head" }, title, about, element("span", { class: "ends" }, badge, total)), bar, words, error);
  const parts = new KeyedList(bar, (key) => barPart(key));
  return {
    node,
    update: ({ call, longestS }) => {
      setText(title, call.model ?? call.cap);
      setText(about, `${call.model === null ? "" : `${call.cap} · `}${call.cartridge ? `${call.cartridge} · ` : ""}${clock(call.began_at_s)}`);
      setText(badge, call.state === "open" ? TITLES[call.spans[call.spans.length - 1][0]] : call.state);
      badge.dataset.tone = TONES[call.state];
      setText(total, seconds(elapsedS(call)));
      const spans = spansOf(call);
      parts.render(spans.map((span, index) => [`${index} ${span.stage}`, { ...span, longestS }]));
      const told = stageTimes(spans).map(([stage, spentS]) => `${TITLES[stage]} ${seconds(spentS)}`);
      setAttribute(bar, "aria-label", told.join(", "));
      setText(words, [...told, speedOf(call, spans), call.state === "open" ? progressText(call) : ""].filter(Boolean).join(" · "));
      setText(error, call.error && call.state === "failed" ? problemText(call.error) : "");
      setAttribute(error, "hidden", !error.textContent);
    },
  };
}

function barPart(key) {
  const node = element("span", { class: "part", "data-stage": key.split(" ")[1] });
  return {
    node,
    update: ({ stage, fromS, toS, longestS }) => {
      node.style.setProperty("--from", fromS / longestS);
      node.style.setProperty("--length", (toS - fromS) / longestS);
      setAttribute(node, "title", `${TITLES[stage]}: ${seconds(toS - fromS)}`);
    },
  };
}

function spansOf(call) {
  const endS = elapsedS(call);
  return call.spans.map(([stage, fromS], index) => ({ stage, fromS, toS: Math.max(fromS, call.spans[index + 1]?.[1] ?? endS) }));
}

/** Seconds in each stage, in the stages' order; those that took no time to speak of are left out. */
function stageTimes(spans) {
  const sums = new Map();
  for (const { stage, fromS, toS } of spans) sums.set(stage, (sums.get(stage) ?? 0) + toS - fromS);
  const all = [...sums.values()].reduce((sum, one) => sum + one, 0);
  return STAGES.map(([stage]) => [stage, sums.get(stage) ?? 0]).filter(([, spentS]) => spentS > all / 200);
}

function speedOf(call, spans) {
  const made = call.usage.completion_tokens;
  if (!made) return "";
  const tokens = spans.find((one) => one.stage === "tokens");
  const spentS = tokens ? tokens.toS - tokens.fromS : 0;
  return made > 1 && spentS > 0.001 ? `${made} tokens, ${((made - 1) / spentS).toFixed(1)} a second` : `${made} tokens`;
}
