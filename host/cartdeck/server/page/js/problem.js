// Owns how an error is shown: what happened, its code, what to do next.

import { element } from "./dom.js";

/** A box for an error, empty and hidden at first: {node, show(error), clear()}. */
export function problemBox() {
  const node = element("div", { class: "problem", role: "alert", hidden: true });
  return {
    node,
    clear: () => {
      node.hidden = true;
      node.replaceChildren();
    },
    show: (error) => {
      node.replaceChildren(...problemLines(error));
      node.hidden = false;
    },
  };
}

/** An error as one line of text. */
export function problemText(error) {
  const message = /[.!?…]$/.test(error.message) ? error.message : `${error.message}.`;
  return `${error.code}: ${message}${error.remedy ? ` ${error.remedy}` : ""}`;
}

/** The lines for something with `message`, and perhaps `code`, `remedy` and `details`. */
export function problemLines(error) {
  const details = error.details ?? {};
  const place = details.line && !error.message.startsWith("line ") ? ` (line ${details.line}, column ${details.column ?? 1})` : "";
  const near = new Set([...(details.candidates ?? []), ...(details.near ?? [])].map(String).filter((one) => !error.message.includes(one)));
  return [
    element("p", {}, element("strong", { text: error.message + place })),
    near.size ? element("p", { text: `Near it: ${[...near].slice(0, 6).join(", ")}` }) : null,
    error.remedy ? element("p", { text: error.remedy }) : null,
    error.code ? element("p", { class: "code", text: error.code }) : null,
  ].filter((one) => one !== null);
}
