// Owns the fields for what a plan takes: one for each input, kept while the plan is edited.

import { element, newId } from "../dom.js";

/** {node, render(inputs), values()}: `values` gives what the server takes, by name. */
export function planInputs() {
  const node = element("div", { class: "stack" });
  const fields = new Map();

  function fieldOf(input) {
    const id = newId("input");
    const text = element("textarea", { id, rows: "2", spellcheck: "false" });
    const file = element("input", { type: "file", "aria-label": `A file for ${input.name}`, multiple: input.depth > 0 });
    const hint = input.depth ? "a sequence: one on each line" : input.kind === "bytes" ? "a file, or text" : "";
    return {
      input, text, file,
      node: element("div", { class: "field" },
        element("label", { for: id }, element("strong", { text: input.name }), element("span", { class: "muted", text: ` ${input.shown}${hint ? ` · ${hint}` : ""}` })), text, file),
    };
  }

  return {
    node,
    render: (inputs) => {
      const before = new Map(fields);
      fields.clear();
      for (const input of inputs) {
        const known = before.get(input.name);
        const isSame = known && known.input.depth === input.depth && known.input.kind === input.kind;
        fields.set(input.name, isSame ? known : fieldOf(input));
      }
      const nodes = [...fields.values()].map((field) => field.node);
      if (nodes.some((one, index) => node.children[index] !== one) || node.children.length !== nodes.length) node.replaceChildren(...nodes);
    },
    values: async () => {
      const values = {};
      for (const [name, field] of fields) {
        const files = await Promise.all([...field.file.files].map(encoded));
        const isSequence = field.input.depth > 0;
        if (files.length) values[name] = isSequence ? files : files[0];
        else if (isSequence) values[name] = field.text.value.split("\n").filter(Boolean).map((line) => valueOf(line, field.input.kind));
        else values[name] = valueOf(field.text.value, field.input.kind);
      }
      return values;
    },
  };
}

/** Text as what the input takes: numbers and JSON are read, the rest stays text. */
function valueOf(text, kind) {
  if (["integer", "number", "boolean", "json"].includes(kind)) {
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }
  return text;
}

async function encoded(file) {
  const data = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < data.length; at += 0x8000) text += String.fromCharCode(...data.subarray(at, at + 0x8000));
  return { base64: btoa(text) };
}
