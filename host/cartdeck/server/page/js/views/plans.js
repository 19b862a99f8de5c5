// Owns the view of plans: a text, what it takes, its graph, and its run with live states.

import { announce } from "../announce.js";
import { element } from "../dom.js";
import { askEvents, askJson } from "../http.js";
import { problemBox } from "../problem.js";
import { planGraph } from "./plan_graph.js";
import { planInputs } from "./plan_inputs.js";
import { planOutcome } from "./plan_outcome.js";

const DRAW_AFTER_MS = 400;
const EXAMPLE = "# what goes in comes out again, and is weighed\nwords -> echo -> copied\ncopied -> sink -> size\n";

export function plansView(section) {
  const text = element("textarea", { id: "plan-text", rows: "9", spellcheck: "false", class: "code", placeholder: EXAMPLE });
  const example = element("button", { type: "button", class: "quiet", text: "An example" });
  const problem = problemBox();
  const inputs = planInputs();
  const run = element("button", { type: "submit", class: "main", text: "Run" });
  const stop = element("button", { type: "button", class: "main stop", text: "Stop", hidden: true });
  const status = element("p", { class: "muted", role: "status" });
  const form = element("form", { class: "stack" },
    element("div", { class: "field" }, element("div", { class: "row" }, element("label", { for: "plan-text", text: "Plan" }), element("span", { class: "spring" }), example), text),
    problem.node, inputs.node, element("div", { class: "row" }, status, element("span", { class: "spring" }), stop, run));
  const place = element("div", { class: "scroller graph-place", tabindex: "0", role: "group", "aria-label": "Graph of the plan" });
  const empty = element("p", { class: "empty", text: "A plan wires caps together: SOURCE -> CAP -> TARGET, one on each line. Its graph appears here as you write." });
  const outcome = planOutcome();
  section.append(element("div", { class: "halves" }, form, element("div", { class: "stack" }, place, empty, outcome.node)));

  let graph = null;
  let media = new Map();
  let timer = 0;
  let drawing = null;
  let running = null;

  async function draw() {
    drawing?.abort();
    const mine = (drawing = new AbortController());
    if (!text.value.trim()) {
      showGraph(null);
      problem.clear();
      return;
    }
    try {
      const told = await askJson("plans/show", { plan: text.value }, { signal: mine.signal });
      if (mine.signal.aborted) return;
      problem.clear();
      inputs.render(told.inputs);
      media = new Map(told.outputs.map((one) => [one.name, one.shown]));
      showGraph(planGraph(told, (place.parentElement.clientWidth || 600) - 12));
    } catch (error) {
      if (error.name === "AbortError") return;
      problem.show(error);
      place.classList.add("stale");
      outcome.clear([]);
      status.textContent = "";
    }
  }

  function showGraph(next) {
    graph = next;
    place.classList.remove("stale");
    place.replaceChildren(...(next === null ? [] : [next.node]));
    place.hidden = next === null;
    empty.hidden = next !== null;
    if (next === null) inputs.render([]);
    outcome.clear(next === null ? [] : next.steps);
    status.textContent = "";
  }

  async function start() {
    clearTimeout(timer);
    await draw();
    if (graph === null || place.classList.contains("stale")) return;
    outcome.clear(graph.steps);
    for (const step of graph.steps) graph.setState(step, "waiting", null);
    running = new AbortController();
    setRunning(true);
    status.textContent = "running …";
    try {
      const body = { plan: text.value, inputs: await inputs.values(), stream: true };
      for await (const event of askEvents("plans/run", body, running.signal)) take(event);
      status.textContent = "done";
      announce("The plan is done.");
    } catch (error) {
      end(error);
    } finally {
      running = null;
      setRunning(false);
    }
  }

  function end(error) {
    const isStopped = error.name === "AbortError";
    status.textContent = isStopped ? "stopped" : "failed";
    if (isStopped) for (const step of graph.steps) cancelled(step);
    else problem.show(error);
    announce(isStopped ? "The plan was stopped." : "The plan failed.");
  }

  const states = new Map();
  function cancelled(step) {
    if (states.get(step) === "running") set(step, "cancelled", { words: "", error: null });
  }

  function set(step, state, change) {
    states.set(step, state);
    outcome.setStep(step, { state, ...change });
    graph.setState(step, state, change.words || null);
  }

  function take({ name, data }) {
    if (name === "step") set(data.step, "running", { words: `on ${data.cartridge}`, share: null, error: null });
    else if (name === "progress") {
      const items = data.items_total ? `${data.items_done} of ${data.items_total} items` : "";
      const words = [items, data.phase, data.message].filter(Boolean).join(" · ");
      set(data.step, "running", { words, share: data.overall ?? data.fraction ?? null });
    } else if (name === "log") outcome.addLine(`${data.step} ${data.level}  ${data.message}`);
    else if (name === "item-failed") outcome.addLine(`${data.step} item ${data.item.join(".")}  ${data.error.code}: ${data.error.message}`);
    else if (name === "step-end") set(data.step, data.state, { words: data.because ?? "", error: data.error });
    else if (name === "end") outcome.showOutputs(data.outputs ?? {}, media);
  }

  function setRunning(isRunning) {
    const hadFocus = [run, stop].includes(document.activeElement);
    stop.hidden = !isRunning;
    run.hidden = isRunning;
    text.readOnly = isRunning;
    if (hadFocus) (isRunning ? stop : run).focus();
  }

  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(draw, DRAW_AFTER_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running === null) start();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  section.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  stop.addEventListener("click", () => running?.abort());
  example.addEventListener("click", () => {
    text.value = EXAMPLE;
    draw();
    text.focus();
  });
  showGraph(null);
  return {};
}
