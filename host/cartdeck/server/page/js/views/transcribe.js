// Owns the transcript of a recording: a file goes up, text with times comes back.

import { announce } from "../announce.js";
import { element } from "../dom.js";
import { bytes, seconds } from "../format.js";
import { askJson } from "../http.js";
import { problemBox } from "../problem.js";
import { modelSelect } from "./model_select.js";

export function transcribe(panel) {
  const model = modelSelect("transcription");
  const file = element("input", { type: "file", id: "audio-file", accept: "audio/*,video/mp4,video/webm" });
  const about = element("p", { class: "muted" });
  const player = element("audio", { controls: true, hidden: true });
  const task = element("select", { id: "audio-task" },
    element("option", { value: "transcriptions", text: "as it is said" }), element("option", { value: "translations", text: "in English" }));
  const run = element("button", { type: "submit", class: "main", text: "Transcribe" });
  const stop = element("button", { type: "button", class: "main stop", text: "Stop", hidden: true });
  const problem = problemBox();
  const status = element("p", { class: "muted", role: "status" });
  const lines = element("ol", { class: "transcript plain", "aria-label": "Transcript" });
  const empty = element("p", { class: "empty", text: "Choose a recording: WAV, FLAC, MP3, Ogg, M4A or WebM." });
  const form = element("form", {},
    element("div", { class: "fields" }, model.node,
      element("div", { class: "field wide" }, element("label", { for: "audio-file", text: "Recording" }), file),
      element("div", { class: "field" }, element("label", { for: "audio-task", text: "Write it down" }), task)),
    element("div", { class: "row" }, player, about, element("span", { class: "spring" }), stop, run));
  panel.append(form, problem.node, status, lines, empty);

  let running = null;
  let url = null;
  file.addEventListener("change", () => {
    if (url !== null) URL.revokeObjectURL(url);
    const chosen = file.files[0];
    url = chosen ? URL.createObjectURL(chosen) : null;
    player.hidden = url === null;
    if (url !== null) player.src = url;
    about.textContent = chosen ? bytes(chosen.size) : "";
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running !== null) return;
    problem.clear();
    if (!file.files.length) {
      problem.show({ message: "No recording is chosen." });
      file.focus();
      return;
    }
    lines.replaceChildren();  // what the recording before gave does not stand beside what this one will give
    running = new AbortController();
    const begun = performance.now();
    setRunning(true);
    try {
      const body = new FormData();
      body.append("model", model.value());
      body.append("response_format", "verbose_json");
      body.append("file", file.files[0]);
      show(await askJson(`v1/audio/${task.value}`, body, { signal: running.signal }), (performance.now() - begun) / 1000);
    } catch (error) {
      status.textContent = "";
      if (error.name === "AbortError") status.textContent = "stopped";
      else problem.show(error);
    } finally {
      running = null;
      setRunning(false);
    }
  });

  function setRunning(isRunning) {
    const hadFocus = [run, stop].includes(document.activeElement);
    stop.hidden = !isRunning;
    run.hidden = isRunning;
    if (hadFocus) (isRunning ? stop : run).focus();
    if (isRunning) status.textContent = "listening …";
  }

  function show(told, spentS) {
    const segments = told.segments?.length ? told.segments : [{ start: 0, text: told.text }];
    lines.replaceChildren(...segments.map((one) => element("li", {}, element("span", { class: "time", text: time(one.start) }), element("span", { text: one.text.trim() }))));
    empty.hidden = true;
    status.textContent = [told.language, told.duration ? `${seconds(told.duration)} of sound` : "", `in ${seconds(spentS)}`].filter(Boolean).join(" · ");
    announce("The transcript is there.");
  }

  stop.addEventListener("click", () => running?.abort());
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
}

function time(valueS) {
  return `${Math.floor(valueS / 60)}:${String(Math.floor(valueS % 60)).padStart(2, "0")}`;
}
