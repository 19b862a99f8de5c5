// Owns how figures and names are written. It does not know where they come from.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let power = 0;
  let value = count;
  while (value >= 1024 && power < UNITS.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${value >= 100 || power === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[power]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${value.toFixed(2)} s`;
  if (value < 99.5) return `${value.toFixed(1)} s`;
  if (value < 5400) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
}

export function clock(seconds1970) {
  return new Date(seconds1970 * 1000).toLocaleTimeString([], { hour12: false });
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** What of a session's key a person looks for: the model's short name, and what else makes it another instance. */
export function instanceParts(instance) {
  if (!instance) return { name: "no instance", rest: "" };
  let given;
  try {
    given = JSON.parse(instance);
  } catch {
    return { name: instance, rest: "" };
  }
  if (given === null || typeof given !== "object" || Array.isArray(given)) return { name: instance, rest: "" };
  const { model, ...others } = given;
  const rest = Object.entries(others).map(([name, value]) => `${name}=${shortName(written(value))}`).join(" ");
  return model === undefined ? { name: rest || instance, rest: "" } : { name: shortName(String(model)), rest };
}

function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The last part of a spec or path, without the hash behind it. */
export function shortName(spec) {
  const plain = spec.split("#")[0].replace(/\/+$/, "");
  const last = plain.slice(plain.lastIndexOf("/") + 1);
  return last || spec;
}

/** How far something is, of what it counts: bytes where a phase counts them, else a share. */
export function progressText(call) {
  if (call.work !== null && call.total) {
    const isBytes = call.total >= 4096;
    return isBytes ? `${bytes(call.work)} of ${bytes(call.total)}` : `${call.work} of ${call.total}`;
  }
  return call.message || "";
}
