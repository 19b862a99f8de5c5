// Owns what is known of the server now: told over one connection that is opened again when it breaks, and closed while
// nobody looks. It does not know what is shown. All of it is bounded: what the server has, and the last calls.

import { askEvents } from "./http.js";

export const MOST_CALLS = 200;
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 10_000;
const HIDDEN_FOR_MS = 5000;

class Live extends EventTarget {
  server = null;
  cartridges = new Map();
  sessions = new Map();
  models = new Map();
  /** Calls by their number, in its order. */
  calls = new Map();
  /** The cartridge whose log is told as well, and who takes the lines. */
  #log = null;
  #takeLines = null;
  #abort = null;
  #hiding = 0;
  state = "waiting";

  start() {
    document.addEventListener("visibilitychange", () => {
      clearTimeout(this.#hiding);
      if (document.hidden) this.#hiding = setTimeout(() => this.#abort?.abort(), HIDDEN_FOR_MS);
      else if (this.state === "asleep") this.#wake();
    });
    this.#keepOn();
  }

  /** Tell the log of a cartridge to `takeLines(lines, isFresh)`; null ends that. */
  followLog(cartridge, takeLines) {
    if (this.#log === cartridge && this.#takeLines === takeLines) return;
    this.#log = cartridge;
    this.#takeLines = takeLines;
    this.#again = true;
    this.#abort?.abort();
  }

  #again = false;
  #wake = () => {};

  async #keepOn() {
    let waitMs = FIRST_WAIT_MS;
    for (;;) {
      if (document.hidden && this.state !== "waiting") {
        this.#become("asleep");
        await new Promise((resolve) => { this.#wake = resolve; });
      }
      this.#abort = new AbortController();
      this.#again = false;
      try {
        await this.#read(this.#abort.signal, () => { waitMs = FIRST_WAIT_MS; });
      } catch (error) {
        if (error.name !== "AbortError") this.lastProblem = error;
      }
      if (this.#again || document.hidden) continue;
      this.#become("broken");
      await new Promise((resolve) => { setTimeout(resolve, waitMs); });
      waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
    }
  }

  async #read(signal, onNews) {
    const query = this.#log === null ? "" : `?log=${encodeURIComponent(this.#log)}`;
    let isFresh = true;
    for await (const { name, data } of askEvents(`events${query}`, undefined, signal)) {
      if (name === "state") this.#takeState(data);
      else if (name === "calls") this.#takeCalls(data);
      else if (name === "log" && data.cartridge === this.#log) {
        this.#takeLines?.(data.lines, isFresh);
        isFresh = false;
      }
      this.#become("open");
      onNews();
      if (name !== "log") this.dispatchEvent(new Event(name));
    }
  }

  #become(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new Event("link"));
  }

  #takeState(data) {
    if (data.is_whole) {
      for (const one of [this.cartridges, this.sessions, this.models, this.calls]) one.clear();
    }
    if (data.server) this.server = data.server[""];
    for (const kind of ["cartridges", "sessions", "models"]) {
      for (const [key, record] of Object.entries(data[kind] ?? {})) this[kind].set(key, record);
    }
    for (const [kind, key] of data.gone ?? []) this[kind]?.delete(key);
  }

  #takeCalls(entries) {
    const now = performance.now();
    let isOrdered = true;
    for (const entry of entries) {
      entry.heardMs = now;
      isOrdered &&= this.calls.has(entry.number) || entry.number > this.#lastNumber();
      this.calls.set(entry.number, entry);
      this.#highest = Math.max(this.#highest, entry.number);
    }
    if (!isOrdered) this.calls = new Map([...this.calls].sort(([one], [other]) => one - other));
    if (this.calls.size > MOST_CALLS) this.#dropOldest();
  }

  #highest = 0;

  #lastNumber() {
    return this.calls.size ? this.#highest : 0;
  }

  /** Those that ended first; the open ones only when there are too many of them. */
  #dropOldest() {
    for (const isOpen of [false, true]) {
      for (const [number, call] of this.calls) {
        if (this.calls.size <= MOST_CALLS) return;
        if ((call.state === "open") === isOpen) this.calls.delete(number);
      }
    }
  }
}

export const live = new Live();

/** How long a call has been going on, in seconds, now. */
export function elapsedS(call) {
  return call.state === "open" ? call.now_s + (performance.now() - call.heardMs) / 1000 : call.now_s;
}
