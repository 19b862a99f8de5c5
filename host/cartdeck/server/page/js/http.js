// Owns how the server is asked: addresses, the key, errors in its own words. It does not know what is asked.

import { askKey } from "./key_prompt.js";
import { events } from "./event_stream.js";

const BASE = new URL(".", document.baseURI);

/** What the server answered with an error, or that it did not answer. */
export class Problem extends Error {
  constructor(record) {
    super(record.message);
    this.code = record.code ?? "";
    this.remedy = record.remedy ?? "";
    this.param = record.param ?? null;
    this.details = record.details ?? {};
  }
}

let key = null;
try {
  key = sessionStorage.getItem("key");
} catch {
  // a browser that keeps nothing
}

/** A response that is good. Asks the person for a key where the server wants one. Throws Problem, AbortError. */
export async function ask(path, options = {}) {
  for (;;) {
    const used = key;
    const headers = { ...options.headers, ...(used === null ? {} : { authorization: `Bearer ${used}` }) };
    let response;
    try {
      response = await fetch(new URL(path, BASE), { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem({
        code: "NO_ANSWER",
        message: "The server does not answer.",
        remedy: "Look whether `cartdeck serve` still runs, then try again.",
      });
    }
    if (response.status === 401) {
      const problem = await problemOf(response);
      if (key === used) await newKey(used === null ? "" : problem.message);
      continue;
    }
    if (!response.ok) throw await problemOf(response);
    return response;
  }
}

async function newKey(problem) {
  key = await askKey(problem);
  try {
    sessionStorage.setItem("key", key);
  } catch {
    // it holds until the page is closed
  }
}

async function problemOf(response) {
  try {
    return new Problem((await response.json()).error);
  } catch {
    return new Problem({ code: String(response.status), message: `The server answered with ${response.status}.` });
  }
}

export async function askJson(path, body, options = {}) {
  const sent = body === undefined ? {} : posted(body);
  return (await ask(path, { ...sent, ...options })).json();
}

/** The events of a stream as {name, data}. One named `error` is thrown. */
export async function* askEvents(path, body, signal) {
  const response = await ask(path, { ...(body === undefined ? {} : posted(body)), signal });
  for await (const event of events(response.body)) {
    if (event.name === "error") throw new Problem(event.data.error);
    yield event;
  }
}

function posted(body) {
  if (body instanceof FormData) return { method: "POST", body };
  return { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
}
