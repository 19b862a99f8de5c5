// Owns the log of one cartridge: its last lines, followed while the panel is open. One panel is open at a time, since the
// server tells one log. Lines are text, whatever is in them; the oldest leave as new ones come.

import { element, newId, setText } from "../dom.js";
import { clock } from "../format.js";
import { live } from "../live.js";

export const MOST_LINES = 2000;
let openPanel = null;

export function logPanel(cartridge) {
  const id = newId("log");
  const button = element("button", {
    type: "button", class: "quiet", "aria-expanded": "false", "aria-controls": id, text: "Log", "aria-label": `Log of ${cartridge}`,
  });
  const lines = element("div", { class: "log", role: "log", "aria-live": "off", "aria-label": `Log of ${cartridge}`, tabindex: "0" });
  const filter = element("input", { type: "text", placeholder: "lines with …", autocomplete: "off", spellcheck: "false", "aria-label": "Show lines with" });
  const status = element("p", { class: "muted" });
  const empty = element("p", { class: "empty", text: "Nothing was written yet. What its processes write to standard error, and what it says of calls, comes here." });
  const node = element("div", { class: "log-panel", id, hidden: true },
    element("div", { class: "row tools" }, filter, status), empty, lines);

  let isFollowing = true;
  lines.addEventListener("scroll", () => {
    isFollowing = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24;
  }, { passive: true });

  function showStatus() {
    const all = lines.childElementCount;
    const hidden = filter.value ? lines.querySelectorAll("[hidden]").length : 0;
    empty.hidden = all > 0;
    lines.hidden = all === 0;
    setText(status, all === 0 ? "" : `${(all - hidden).toLocaleString("en")} of ${all.toLocaleString("en")} lines`);
  }

  function take(news, isFresh) {
    if (isFresh) lines.replaceChildren();
    const kept = news.slice(-MOST_LINES);
    for (let extra = lines.childElementCount + kept.length - MOST_LINES; extra > 0; extra -= 1) lines.firstElementChild.remove();
    const words = filter.value.toLowerCase();
    const fragment = document.createDocumentFragment();
    for (const line of kept) fragment.append(lineNode(line, words));
    lines.append(fragment);
    showStatus();
    if (isFollowing || isFresh) lines.scrollTop = lines.scrollHeight;
  }

  const panel = {
    close: () => {
      node.hidden = true;
      button.setAttribute("aria-expanded", "false");
      lines.replaceChildren();
    },
  };
  button.addEventListener("click", () => {
    const wasOpen = openPanel === panel;
    openPanel?.close();
    openPanel = wasOpen ? null : panel;
    if (wasOpen) {
      live.followLog(null, null);
      return;
    }
    node.hidden = false;
    button.setAttribute("aria-expanded", "true");
    isFollowing = true;
    showStatus();
    live.followLog(cartridge, take);
  });
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase();
    for (const line of lines.children) line.hidden = isLeftOut(line, words);
    showStatus();
  });
  const close = () => {
    if (openPanel === panel) button.click();
  };
  return { button, node, close };
}

function lineNode([, atS, source, level, text], words) {
  const node = element("div", { class: "line", "data-level": level });
  node.textContent = `${clock(atS)} ${source}${level === "stderr" ? "" : ` ${level}`}  ${text}`;
  node.hidden = isLeftOut(node, words);
  return node;
}

function isLeftOut(node, words) {
  return words !== "" && !node.textContent.toLowerCase().includes(words);
}
