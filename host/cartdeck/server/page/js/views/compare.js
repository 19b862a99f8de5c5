// Owns the comparison of texts by their vectors: the cosine of each pair, as a table.

import { announce } from "../announce.js";
import { element } from "../dom.js";
import { askJson } from "../http.js";
import { problemBox } from "../problem.js";
import { modelSelect } from "./model_select.js";

const MOST_TEXTS = 16;
const EXAMPLE = "A man is eating food.\nSomebody has lunch.\nThe train leaves at nine.";

export function compare(panel) {
  const model = modelSelect("embedding");
  const input = element("textarea", { id: "compare-texts", rows: "5", placeholder: EXAMPLE });
  const run = element("button", { type: "submit", class: "main", text: "Compare" });
  const problem = problemBox();
  const status = element("p", { class: "muted", role: "status" });
  const place = element("div", { class: "scroller" });
  const form = element("form", {},
    element("div", { class: "fields" }, model.node),
    element("div", { class: "field" }, element("label", { for: "compare-texts", text: `Texts, one on each line, up to ${MOST_TEXTS}` }), input),
    element("div", { class: "row" }, status, element("span", { class: "spring" }), run));
  const empty = element("p", { class: "empty", text: "Two texts that mean the same have a cosine near 1, however they are worded." });
  panel.append(form, problem.node, place, empty);

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (run.disabled) return;
    problem.clear();
    const texts = input.value.split("\n").map((one) => one.trim()).filter(Boolean);
    if (texts.length < 2 || texts.length > MOST_TEXTS) {
      problem.show({ message: `There are ${texts.length} texts; expected 2 to ${MOST_TEXTS}.`, remedy: "Write each on a line of its own." });
      return;
    }
    run.disabled = true;
    status.textContent = "computing …";
    try {
      const { data } = await askJson("v1/embeddings", { model: model.value(), input: texts, encoding_format: "float" });
      const vectors = data.map((one) => one.embedding);
      place.replaceChildren(tableOf(texts, vectors));
      empty.hidden = true;
      status.textContent = `vectors of ${vectors[0].length} numbers`;
      announce(`The cosine of the first two is ${cosine(vectors[0], vectors[1]).toFixed(3)}.`);
    } catch (error) {
      status.textContent = "";
      problem.show(error);
    } finally {
      run.disabled = false;
    }
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}

function tableOf(texts, vectors) {
  const head = element("tr", {}, element("td"), ...texts.map((text, index) => element("th", { scope: "col", title: text, text: String(index + 1) })));
  const rows = texts.map((text, index) => {
    const heading = element("th", { scope: "row" }, element("span", { class: "number", text: `${index + 1}` }), element("span", { text }));
    return element("tr", {}, heading, ...vectors.map((other) => cellOf(cosine(vectors[index], other))));
  });
  return element("table", { class: "cosines", "aria-label": "Cosine of each pair" }, element("thead", {}, head), element("tbody", {}, ...rows));
}

function cellOf(value) {
  const cell = element("td", { text: value.toFixed(3) });
  cell.style.setProperty("--warm", Math.max(0, value));
  return cell;
}

export function cosine(one, other) {
  let dot = 0;
  let oneSquare = 0;
  let otherSquare = 0;
  for (let index = 0; index < one.length; index += 1) {
    dot += one[index] * other[index];
    oneSquare += one[index] ** 2;
    otherSquare += other[index] ** 2;
  }
  return dot / Math.sqrt(oneSquare * otherSquare || 1);
}
