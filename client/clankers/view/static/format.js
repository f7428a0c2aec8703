// Numbers, times and names as people read them. Unknown is shown as unknown, never as zero.

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const dayTime = new Intl.DateTimeFormat(undefined, {
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
});
const fullTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const minuteTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayOnly = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const whole = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

const MINUTE = 60_000;
export const DAY = 86_400_000;

export const number = (value) => (value === null || value === undefined ? "unknown" : whole.format(value));
export const compact = (value) => (value === null || value === undefined ? "–" : short.format(value));
export const percent = (value) => `${Math.round(value * 100)} %`;
export const day = (at) => dayOnly.format(at);
export const shortDay = (at) => new Date(at).toLocaleDateString();
export const minute = (at) => minuteTime.format(at);
export const clock = (at) => clockTime.format(at);
export const moment = (at) => (at ? `${fullTime.format(at)} (${zone})` : "unknown");

/** Return a time as an amount before now if it is recent, else as a date. */
export function when(at) {
  if (!at) return "unknown";
  const passed = Date.now() - at;
  if (passed < 0 || passed > 6 * DAY) return dayTime.format(at);
  if (passed < MINUTE) return "just now";
  if (passed < 60 * MINUTE) return `${Math.floor(passed / MINUTE)} min ago`;
  if (passed < DAY) return `${Math.floor(passed / (60 * MINUTE))} h ago`;
  return `${Math.floor(passed / DAY)} d ago`;
}

export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < MINUTE) return `${(milliseconds / 1000).toFixed(1)} s`;
  if (milliseconds < 60 * MINUTE) return `${Math.round(milliseconds / MINUTE)} min`;
  return `${(milliseconds / (60 * MINUTE)).toFixed(1)} h`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "unknown";
  const units = ["B", "KB", "MB", "GB"];
  let index = 0;
  while (value >= 1024 && index < units.length - 1) [value, index] = [value / 1024, index + 1];
  return `${value < 10 && index ? value.toFixed(1) : Math.round(value)} ${units[index]}`;
}

/** Return a cost; most harnesses do not report one, and zero is no report either. */
export const dollars = (value) => (value ? `$${value < 0.1 ? value.toFixed(3) : value.toFixed(2)}` : "unknown");

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
export const baseName = (path) => (path ?? "").split("/").filter(Boolean).pop() ?? "";
export const shortId = (id) => (id.length > 14 ? `${id.slice(0, 8)}…` : id);
export const firstLine = (text, limit = 140) => {
  const line = (text ?? "").trim().split("\n", 1)[0];
  return line.length > limit ? `${line.slice(0, limit)}…` : line;
};

/** Return a local date as the daemon names days: 2026-11-17. */
export const isoDay = (date) =>
  `${date.getFullYear()}-${String(date.getMonth() + 1).padStart(2, "0")}-${String(date.getDate()).padStart(2, "0")}`;

const SEQUENCES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -~])/g;
const UNSAFE = /[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u{e0000}-\u{e007f}]/gu;
const INVISIBLE = /[\xad\u061c\u200b\u200e\u200f\u2060-\u2065\u206a-\u206f\ufeff]/g;

/** Return a text without terminal escapes, and without characters that reorder text or hide in it. */
export const visible = (text) =>
  text.replaceAll("\r\n", "\n").replace(SEQUENCES, "").replace(UNSAFE, "\ufffd").replace(INVISIBLE, "");
