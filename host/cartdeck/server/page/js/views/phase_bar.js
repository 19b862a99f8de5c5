// Owns the bar of a load: obtaining, then loading, each with how far it is.

import { element, setAttribute, setText } from "../dom.js";
import { progressText, seconds } from "../format.js";
import { elapsedS } from "../live.js";

const PHASES = [["obtain", "Obtain"], ["load", "Load"]];

export function phaseBar() {
  const parts = PHASES.map(([stage, title]) => {
    const fill = element("span", { class: "fill" });
    const node = element("div", { class: "phase", "data-stage": stage, role: "progressbar", "aria-label": title, "aria-valuemin": "0", "aria-valuemax": "100" },
      element("span", { class: "phase-name", text: title }), element("span", { class: "track" }, fill));
    return { stage, node, fill };
  });
  const words = element("p", { class: "muted phase-words" });
  const node = element("div", { class: "phases" }, element("div", { class: "phase-row" }, ...parts.map((one) => one.node)), words);
  return {
    node,
    /** `call` is one that obtains or loads. */
    update: (call) => {
      const at = PHASES.findIndex(([stage]) => stage === stageOf(call));
      for (const [index, part] of parts.entries()) {
        const share = index < at ? 1 : index > at ? 0 : shareOf(call);
        part.node.dataset.state = index < at ? "done" : index > at ? "waiting" : share === null ? "unknown" : "running";
        part.fill.style.setProperty("--share", share ?? 0.35);
        setAttribute(part.node, "aria-valuenow", share === null ? null : Math.round(share * 100));
      }
      setText(words, `${progressText(call) || "starting"} · ${seconds(elapsedS(call))}`);
    },
  };
}

export function stageOf(call) {
  return call.spans[call.spans.length - 1][0];
}

function shareOf(call) {
  return call.work !== null && call.total ? Math.min(1, call.work / call.total) : null;
}
