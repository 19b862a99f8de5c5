// Owns the keys of the whole page. Single keys do nothing while something is written, and can be turned off: speech input
// would press them (WCAG 2.1.4).

import { focusTitle } from "./router.js";
import { keep, kept } from "./theme.js";

const WRITING = "input, textarea, select, [contenteditable]";
const INERT_TYPES = new Set(["checkbox", "radio", "button", "submit", "file"]);

export function startShortcuts(views, nextTheme) {
  const dialog = document.getElementById("help-dialog");
  const toggle = document.getElementById("single-keys");
  toggle.checked = kept("single-keys") !== "off";
  toggle.addEventListener("change", () => keep("single-keys", toggle.checked ? "on" : "off"));
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
    if (!toggle.checked || isWriting(event.target)) return;
    const number = Number(event.key);
    if (number >= 1 && number <= views.length) goTo(`#/${views[number - 1]}`);
    else if (event.key === "?") dialog.showModal();
    else if (event.key === "t") nextTheme();
    else if (event.key === "/") document.querySelector("main > section:not([hidden]) input[type=search]")?.focus();
    else return;
    event.preventDefault();
  });
}

function goTo(hash) {
  if (location.hash === hash) focusTitle();
  else location.hash = hash;
}

function isWriting(target) {
  return target.matches?.(WRITING) && !INERT_TYPES.has(target.type);
}
