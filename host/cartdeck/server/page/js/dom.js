// Owns how elements are made and kept up to date. Data becomes text alone, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes by name, `text` as its text, `on` as listeners; null and false leave an attribute out. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((one) => one !== null && one !== undefined));
  return node;
}

/** Another text, if it is another one: an unchanged node costs no layout and says nothing to a screen reader. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The same for an attribute; null takes it away. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, String(value));
  }
}

/**
 * Children of a node, one for each key, in the order given. `make(key)` gives {node, update(item)}, and may give
 * `onGone()`; a node stays the same for as long as its key is there, so that focus and selection stay too.
 */
export class KeyedList {
  #parts = new Map();

  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
  }

  get size() {
    return this.#parts.size;
  }

  /** `items` are pairs of a key and what to show. */
  render(items) {
    const gone = new Set(this.#parts.keys());
    let before = this.parent.firstElementChild;
    for (const [key, item] of items) {
      let part = this.#parts.get(key);
      if (part === undefined) {
        part = this.make(key);
        this.#parts.set(key, part);
      }
      gone.delete(key);
      part.update(item);
      if (part.node === before) before = before.nextElementSibling;
      else this.parent.insertBefore(part.node, before);
    }
    for (const key of gone) {
      const part = this.#parts.get(key);
      part.node.remove();
      part.onGone?.();
      this.#parts.delete(key);
    }
  }
}

/** Calls `work` once before the next frame, however often it is asked. */
export function oncePerFrame(work) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      work();
    });
  };
}

let lastId = 0;

/** An id for a label's `for` or an `aria-…`. */
export function newId(word) {
  lastId += 1;
  return `${word}-${lastId}`;
}
