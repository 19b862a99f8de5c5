// Owns the drawing of a plan: boxes and wires as SVG, each step in the colour of its state. It does not know how a plan
// runs; the server says where the boxes stand.

import { drawn, setAttribute, setText } from "../dom.js";

const GAP = 40;
const MARGIN = 16;

/**
 * An SVG of a drawing that the server made: {node, setState(step, state, words), steps}. It goes from left to right, or
 * downwards where that fits into `roomWidth` and the other does not.
 */
export function planGraph(given, roomWidth) {
  const drawing = given.width > roomWidth ? downwards(given, roomWidth) ?? given : given;
  const [width, height] = drawing.box;
  const places = new Map(drawing.boxes.map((box) => [box.name, box]));
  const node = drawn("svg", {
    class: "graph", width: drawing.width, height: drawing.height, viewBox: `0 0 ${drawing.width} ${drawing.height}`,
    role: "img", "aria-label": `The plan: ${drawing.boxes.map((box) => box.title).join(", ")}`,
  }, drawn("defs", {}, drawn("marker", { id: "tip", viewBox: "0 0 8 8", refX: "8", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" },
    drawn("path", { d: "M0 0L8 4L0 8z", class: "tip" }))));
  for (const wire of drawing.wires) node.append(wireOf(wire, places, drawing));
  const steps = new Map();
  for (const box of drawing.boxes) {
    const part = boxOf(box, width, height);
    node.append(part.node);
    if (box.name.startsWith("step ")) steps.set(box.name.slice(5), part);
  }
  return {
    node,
    setState: (step, state, words) => {
      const part = steps.get(step);
      if (part === undefined) return;
      setAttribute(part.node, "data-state", state);
      setText(part.about, short(words ?? part.ownWords, 32));
    },
    steps: [...steps.keys()],
  };
}

/** The same boxes with columns as rows; null where that is too wide as well. */
function downwards(drawing, roomWidth) {
  const [width, height] = drawing.box;
  const boxes = drawing.boxes.map((box) => ({ ...box, x: MARGIN + box.row * (width + 22), y: MARGIN + box.column * (height + GAP) }));
  const wholeWidth = Math.max(...boxes.map((box) => box.x)) + width + MARGIN;
  if (wholeWidth > roomWidth) return null;
  return { ...drawing, boxes, width: wholeWidth, height: Math.max(...boxes.map((box) => box.y)) + height + MARGIN, isDownwards: true };
}

function boxOf(box, width, height) {
  const middle = box.x + width / 2;
  const about = drawn("text", { class: "small", x: middle, y: box.y + 36, "text-anchor": "middle", text: short(box.about, 32) });
  const node = drawn("g", { class: `box ${box.kind}` }, drawn("title", { text: `${box.title}: ${box.about}` }),
    drawn("rect", { x: box.x, y: box.y, width, height, rx: box.kind === "value" ? height / 2 : 7 }),
    drawn("text", { x: middle, y: box.y + 20, "text-anchor": "middle", text: short(box.title, 24) }), about);
  return { node, about, ownWords: box.about };
}

function wireOf(wire, places, { box: [width, height], isDownwards }) {
  const [from, to] = [places.get(wire.from), places.get(wire.to)];
  const [x, y] = isDownwards ? [from.x + width / 2, from.y + height] : [from.x + width, from.y + height / 2];
  const [toX, toY] = isDownwards ? [to.x + width / 2, to.y] : [to.x, to.y + height / 2];
  const half = Math.max(isDownwards ? 12 : 24, (isDownwards ? toY - y : toX - x) / 2);
  const bend = isDownwards ? `${x} ${y + half} ${toX} ${toY - half}` : `${x + half} ${y} ${toX - half} ${toY}`;
  const path = drawn("path", { class: "wire", "marker-end": "url(#tip)", d: `M${x} ${y}C${bend} ${toX} ${toY}` });
  if (!wire.name) return path;
  const [nameX, nameY] = [(x + toX) / 2 + (isDownwards ? 6 : 0), (y + toY) / 2 + (isDownwards ? 2 : -5)];
  const anchor = isDownwards ? "start" : "middle";
  return drawn("g", {}, path, drawn("text", { class: "small", x: nameX, y: nameY, "text-anchor": anchor, text: short(wire.name, isDownwards ? 20 : 11) }));
}

function short(text, longest) {
  return text.length <= longest ? text : `${text.slice(0, longest - 1)}…`;
}
