// Differences of two texts, by lines or by words, as elements.

import { h } from "./dom.js";

const MAX_CELLS = 4_000_000;
const CONTEXT_LINES = 3;

/** Return the steps from `before` to `after`: arrays of ["same" | "removed" | "added", part]. */
export function steps(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let endA = before.length;
  let endB = after.length;
  while (endA > start && endB > start && before[endA - 1] === after[endB - 1]) [endA, endB] = [endA - 1, endB - 1];
  const middle = between(before.slice(start, endA), after.slice(start, endB));
  const same = (parts) => parts.map((part) => ["same", part]);
  return [...same(before.slice(0, start)), ...middle, ...same(before.slice(endA))];
}

function between(a, b) {
  const whole = [...a.map((part) => ["removed", part]), ...b.map((part) => ["added", part])];
  if (!a.length || !b.length || a.length * b.length > MAX_CELLS) return whole;
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      lengths[i * width + j] =
        a[i] === b[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
  const out = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      out.push(["same", a[i]]);
      [i, j] = [i + 1, j + 1];
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) out.push(["removed", a[i++]]);
    else out.push(["added", b[j++]]);
  }
  while (i < a.length) out.push(["removed", a[i++]]);
  while (j < b.length) out.push(["added", b[j++]]);
  return out;
}

/** Return the changed lines with a few unchanged ones around them. */
export function lineDiff(before, after) {
  const all = steps(before.split("\n"), after.split("\n"));
  if (all.at(-1)?.[0] === "same" && !all.at(-1)[1]) all.pop(); // the end of the last line
  const near = all.map(() => false);
  all.forEach(([kind], index) => {
    if (kind === "same") return;
    for (let at = index - CONTEXT_LINES; at <= index + CONTEXT_LINES; at += 1) if (at in near) near[at] = true;
  });
  const rows = [];
  let skipped = 0;
  const flush = () => skipped && rows.push(h("div", { class: "skipped" }, `… ${skipped} unchanged lines`));
  all.forEach(([kind, line], index) => {
    if (!near[index]) {
      skipped += 1;
      return;
    }
    flush();
    skipped = 0;
    const sign = { same: " ", removed: "−", added: "+" }[kind];
    rows.push(
      h(
        "div",
        { class: kind },
        h("span", { class: "sign", "aria-hidden": "true" }, sign),
        kind !== "same" && h("span", { class: "hidden" }, `${kind}: `),
        line || " ",
      ),
    );
  });
  flush();
  return h("div", { class: "diff", tabindex: 0, role: "group", "aria-label": "Changed lines" }, rows);
}

/** Return the text with removed words struck and added words marked. */
export function wordDiff(before, after) {
  const words = (text) => text.match(/\s+|[\w'’-]+|[^\w\s]/gu) ?? [];
  const tags = { same: "span", removed: "del", added: "ins" };
  return h(
    "p",
    { class: "worddiff" },
    steps(words(before), words(after)).map(([kind, part]) => h(tags[kind], {}, part)),
  );
}
