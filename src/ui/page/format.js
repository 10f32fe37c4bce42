// Numbers and times as people read them.

const LARGE = [[1024 ** 4, "TiB"], [1024 ** 3, "GiB"], [1024 ** 2, "MiB"], [1024, "KiB"]];

export function bytes(count) {
  const [unit, name] = LARGE.find(([unit]) => count >= unit) ?? [1, "B"];
  const value = count / unit;
  return `${value >= 100 || unit === 1 ? Math.round(value) : value.toFixed(1)} ${name}`;
}

export function span(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${whole % 60} s`;
}

export const count = (number) => Math.round(number).toLocaleString("en").replaceAll(",", "\u202f");
/** A count with what is counted: `1 task`, `2 tasks`. */
export const counted = (number, one) => `${count(number)} ${one}${number === 1 ? "" : "s"}`;
export const percent = (part, whole) => (whole > 0 ? `${Math.floor((100 * part) / whole)} %` : "–");

export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  return Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function day(ms) {
  const date = new Date(ms);
  return date.toDateString() === new Date().toDateString() ? "" : date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

export const moment = (ms) => [day(ms), clock(ms)].filter(Boolean).join(", ");

/** A value of any kind in one line. */
export function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return number(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 80 ? `${text.slice(0, 79)}…` : text;
}
