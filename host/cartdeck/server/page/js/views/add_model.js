// Owns the form that adds a model of a hub to the catalog: a job of steps, each told as it goes. It does not know the steps.

import { announce } from "../announce.js";
import { KeyedList, element, setAttribute, setText } from "../dom.js";
import { bytes, seconds } from "../format.js";
import { askEvents } from "../http.js";
import { problemBox } from "../problem.js";

export function addModel() {
  const repository = element("input", { type: "text", id: "add-repository", placeholder: "owner/name", autocomplete: "off", spellcheck: "false", required: true });
  const name = element("input", { type: "text", id: "add-name", placeholder: "from the repository", autocomplete: "off", spellcheck: "false" });
  const run = element("button", { type: "submit", class: "main", text: "Add" });
  const stop = element("button", { type: "button", class: "main stop", text: "Stop", hidden: true });
  const bar = element("progress", { max: "1", "aria-label": "Progress of the job", hidden: true });
  const problem = problemBox();
  const steps = element("ol", { class: "steps plain", "aria-label": "Steps of the job" });
  const status = element("p", { class: "muted", role: "status" });
  const form = element("form", { class: "fields" },
    element("div", { class: "field" }, element("label", { for: "add-repository", text: "Repository" }), repository),
    element("div", { class: "field" }, element("label", { for: "add-name", text: "Name" }), name),
    element("div", { class: "row" }, stop, run, bar));
  const node = element("details", { class: "card" }, element("summary", { text: "Add a model from a hub" }),
    element("div", { class: "stack" },  // a gap of the details itself is none between its parts
      element("p", { class: "muted", text: "It is chosen for this machine, fetched, verified, started and asked before the catalog names it." }),
      form, status, problem.node, steps));

  const told = new Map();
  const list = new KeyedList(steps, () => stepLine());
  let running = null;

  function take({ name: kind, data }) {
    const before = told.get(data.step) ?? { title: data.step, state: "running", words: "" };
    if (data.overall !== undefined) bar.value = data.overall;
    if (kind === "step") told.set(data.step, { ...before, title: data.title });
    else if (kind === "progress") told.set(data.step, { ...before, words: progressWords(data) });
    else if (kind === "step-end") told.set(data.step, { ...before, state: "done", words: `${data.text} · ${seconds(data.seconds)}` });
    else if (kind === "end") finish(data);
    list.render(told);
  }

  function finish(result) {
    setText(status, `${result.name ?? "The model"} is in the catalog.`);
    announce(`${result.name ?? "The model"} is in the catalog.`);
    form.reset();
  }

  function fail(error) {
    const isStopped = error.name === "AbortError";
    for (const [step, one] of told) {
      if (one.state === "running") told.set(step, { ...one, state: isStopped ? "stopped" : "failed", words: "" });
    }
    list.render(told);
    setText(status, isStopped ? "Stopped; what was fetched is kept, and the next time goes on from there." : "");
    if (!isStopped) problem.show(error);
  }

  function setRunning(controller) {
    const hadFocus = [run, stop].includes(document.activeElement);
    running = controller;
    stop.hidden = bar.hidden = controller === null;
    run.hidden = controller !== null;
    if (hadFocus) (controller === null ? run : stop).focus();
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running !== null) return;
    problem.clear();
    setText(status, "");
    told.clear();
    list.render(told);
    bar.value = 0;
    setRunning(new AbortController());
    try {
      const body = { repository: repository.value.trim(), ...(name.value.trim() ? { name: name.value.trim() } : {}) };
      for await (const one of askEvents("models/add", body, running.signal)) take(one);
    } catch (error) {
      fail(error);
    } finally {
      setRunning(null);
    }
  });
  stop.addEventListener("click", () => running?.abort());
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  return node;
}

function progressWords({ phase, message, work, total }) {
  const share = work !== null && total ? `${total >= 4096 ? bytes(work) : work} of ${total >= 4096 ? bytes(total) : total}` : "";
  return [share, message || phase].filter(Boolean).join(" · ");
}

function stepLine() {
  const title = element("strong");
  const badge = element("span", { class: "badge" });
  const words = element("span", { class: "muted" });
  return {
    node: element("li", {}, element("div", { class: "row" }, title, badge, words)),
    update: (one) => {
      setText(title, one.title);
      setText(badge, one.state);
      setAttribute(badge, "data-tone", { running: "busy", done: "good", failed: "bad" }[one.state] ?? "calm");
      setText(words, one.words);
    },
  };
}
