// Owns the playground: three things to try, one shown at a time, as tabs.

import { element } from "../dom.js";
import { chat } from "./chat.js";
import { compare } from "./compare.js";
import { transcribe } from "./transcribe.js";

const TABS = [["chat", "Chat", chat], ["transcribe", "Transcribe", transcribe], ["compare", "Compare texts", compare]];

export function playgroundView(section) {
  const list = element("div", { class: "tabs", role: "tablist", "aria-label": "What to try" });
  const tabs = TABS.map(([name, title, make]) => {
    const tab = element("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, text: title });
    const panel = element("div", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, class: "panel" });
    make(panel);
    return { tab, panel };
  });
  const choose = (index, isFocused) => {
    for (const [number, { tab, panel }] of tabs.entries()) {
      tab.setAttribute("aria-selected", String(number === index));
      tab.tabIndex = number === index ? 0 : -1;
      panel.hidden = number !== index;
    }
    if (isFocused) tabs[index].tab.focus();
  };
  for (const [index, { tab }] of tabs.entries()) {
    tab.addEventListener("click", () => choose(index, false));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = step ? (index + step + tabs.length) % tabs.length : { Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(to, true);
    });
  }
  list.append(...tabs.map(({ tab }) => tab));
  section.append(list, ...tabs.map(({ panel }) => panel));
  choose(0, false);
  return {};
}
