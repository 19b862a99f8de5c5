// Owns a dialogue with a model: messages, the answer as it comes, its end. It does not know how images are taken in.

import { announce } from "../announce.js";
import { element } from "../dom.js";
import { seconds } from "../format.js";
import { askEvents } from "../http.js";
import { problemBox } from "../problem.js";
import { imageTray } from "./image_tray.js";
import { modelSelect } from "./model_select.js";

const MOST_MESSAGES = 200;
/** Pixels: an end of an answer that lies further below what is seen is not followed; whoever scrolled up reads there. */
const FOLLOWED = 240;

export function chat(panel) {
  const model = modelSelect("chat");
  const system = wideField("System message", element("input", { type: "text", id: "chat-system", placeholder: "none" }));
  const most = field("Most tokens", element("input", { type: "number", id: "chat-tokens", min: "1", value: "512" }));
  const heat = field("Temperature", element("input", { type: "number", id: "chat-heat", min: "0", max: "2", step: "0.1", placeholder: "model's" }));
  const clear = element("button", { type: "button", class: "quiet", text: "New dialogue" });
  const messages = element("ol", { class: "messages plain", "aria-label": "Dialogue" });
  const empty = element("p", { class: "empty", text: "Ask something. The answer comes word by word; Esc stops it." });
  const problem = problemBox();
  const input = element("textarea", { id: "chat-input", rows: "2", placeholder: "Message", "aria-label": "Message" });
  const tray = imageTray(input, problem);
  const send = element("button", { type: "submit", class: "main", text: "Send" });
  const stop = element("button", { type: "button", class: "main stop", text: "Stop", hidden: true });
  const form = element("form", { class: "composer" }, tray.node, input,
    element("div", { class: "row" }, tray.button, element("span", { class: "spring" }), stop, send));
  panel.append(element("div", { class: "fields" }, model.node, system, most, heat, clear), messages, empty, problem.node, form);

  const dialogue = [];
  let running = null;

  function show(message, images) {
    const text = document.createTextNode(message.text);
    const body = element("div", { class: "text" });
    body.append(text);
    const note = element("p", { class: "muted note" });
    const pictures = images.map((one) => element("img", { src: one.url, alt: one.name, class: "picture" }));
    const node = element("li", { class: `message ${message.role}` },
      element("p", { class: "who", text: message.role === "user" ? "You" : message.model }), ...pictures, body, note);
    messages.append(node);
    empty.hidden = true;
    while (messages.childElementCount > MOST_MESSAGES) messages.firstElementChild.remove();
    follow(node, Infinity);
    return { node, text, note };
  }

  /** Scrolls until the end of the message is above the field for the next one, if it is not more than `most` below and
   * the dialogue is what is seen. */
  function follow(node, most) {
    if (!form.getClientRects().length) return;
    const below = node.getBoundingClientRect().bottom + 8 - form.getBoundingClientRect().top;
    if (below > 0 && below <= most) window.scrollBy(0, below);
  }

  async function run(content, images, shownText) {
    problem.clear();
    const asked = { role: "user", content };
    const question = show({ role: "user", text: shownText }, images);
    const answer = show({ role: "assistant", text: "", model: model.value() }, []);
    answer.node.setAttribute("aria-busy", "true");
    answer.note.textContent = "waiting …";
    setRunning(new AbortController());
    const begun = performance.now();
    const told = { text: "", firstMs: null, tokens: 0, reason: null };
    try {
      for await (const { data } of askEvents("v1/chat/completions", request(asked), running.signal)) {
        take(told, data, answer, begun);
      }
      finished(asked, told, answer, begun);
    } catch (error) {
      if (error.name === "AbortError") finished(asked, { ...told, reason: "stopped" }, answer, begun);
      else failed(error, told, answer, question, { text: shownText, images });
    } finally {
      answer.node.removeAttribute("aria-busy");
      setRunning(null);
    }
  }

  function request(asked) {
    const before = system.input.value.trim() ? [{ role: "system", content: system.input.value }] : [];
    const body = { model: model.value(), messages: [...before, ...dialogue, asked], stream: true, stream_options: { include_usage: true } };
    if (most.input.value) body.max_tokens = Number(most.input.value);
    if (heat.input.value) body.temperature = Number(heat.input.value);
    return body;
  }

  function take(told, data, answer, begun) {
    const choice = data.choices?.[0];
    const piece = choice?.delta?.content;
    if (piece) {
      told.firstMs ??= performance.now() - begun;
      told.text += piece;
      answer.text.appendData(answer.text.length ? piece : piece.trimStart());
      answer.note.textContent = "";
      follow(answer.node, FOLLOWED);
    }
    told.reason = choice?.finish_reason ?? told.reason;
    told.tokens = data.usage?.completion_tokens ?? told.tokens;
  }

  function finished(asked, told, answer, begun) {
    if (told.text) dialogue.push(asked, { role: "assistant", content: told.text });
    const allMs = performance.now() - begun;
    const behindMs = allMs - (told.firstMs ?? allMs);
    const speed = told.tokens > 1 && behindMs > 1 ? `${(((told.tokens - 1) * 1000) / behindMs).toFixed(1)} tokens a second` : "";
    const words = [
      told.reason === "stopped" ? "stopped" : told.reason === "length" ? "cut off at the most tokens" : "",
      told.tokens ? `${told.tokens} tokens` : "",
      told.firstMs === null ? "" : `first after ${seconds(told.firstMs / 1000)}`,
      speed,
    ];
    answer.note.textContent = words.filter(Boolean).join(" · ") || "no text came";
    follow(answer.node, FOLLOWED);
    announce(told.reason === "stopped" ? "The answer was stopped." : `The answer is complete: ${told.text.slice(0, 300)}`);
  }

  function failed(error, told, answer, question, sent) {
    problem.show(error);
    if (told.text) {
      answer.note.textContent = "broken off";
      return;
    }
    answer.node.remove();
    question.note.textContent = "not answered";
    if (input.value || tray.images().length) return;
    input.value = sent.text;
    tray.put(sent.images);
  }

  function setRunning(controller) {
    const hadFocus = document.activeElement === send || document.activeElement === stop;
    running = controller;
    stop.hidden = controller === null;
    send.hidden = controller !== null;
    if (hadFocus) (controller === null ? input : stop).focus();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    const images = tray.images();
    if (running !== null || (!text && images.length === 0)) return;
    const parts = images.map((one) => ({ type: "image_url", image_url: { url: one.url } }));
    input.value = "";
    tray.clear();
    run(images.length ? [...(text ? [{ type: "text", text }] : []), ...parts] : text, images, text);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  stop.addEventListener("click", () => running?.abort());
  clear.addEventListener("click", () => {
    running?.abort();
    dialogue.length = 0;
    messages.replaceChildren();
    empty.hidden = false;
    problem.clear();
    input.focus();
  });
}

function wideField(title, input) {
  const node = field(title, input);
  node.classList.add("wide");
  return node;
}

function field(title, input) {
  const node = element("div", { class: "field" }, element("label", { for: input.id, text: title }), input);
  node.input = input;
  return node;
}
