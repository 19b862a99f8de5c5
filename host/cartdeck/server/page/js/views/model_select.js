// Owns the choice of a model among those that are served for one kind of request.

import { element, newId } from "../dom.js";
import { live } from "../live.js";

/** {node, value()} for models of `kind`: chat, completion, embedding or transcription. */
export function modelSelect(kind) {
  const id = newId("model");
  const select = element("select", { id });
  const node = element("div", { class: "field" }, element("label", { for: id, text: "Model" }), select);
  let shown = "";
  const update = () => {
    const names = [...live.models].filter(([, model]) => model.kinds.includes(kind)).map(([name]) => name);
    if (names.join("\n") === shown && select.childElementCount) return;
    shown = names.join("\n");
    const chosen = select.value;
    const preferred = [...live.models].find(([, model]) => model.kinds.includes(kind) && model.aliases.includes("default"))?.[0];
    select.replaceChildren(...(names.length ? names : [""]).map((name) => element("option", { value: name, text: name || `no model for ${kind}` })));
    select.value = names.includes(chosen) ? chosen : preferred ?? names[0] ?? "";
    select.disabled = names.length === 0;
  };
  live.addEventListener("state", update);
  update();
  return { node, value: () => select.value };
}
