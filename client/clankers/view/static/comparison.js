// What was known at two times, and what changed between them.

import { rpc } from "./api.js";
import { link, timeRange } from "./components.js";
import { wordDiff } from "./diff.js";
import { h } from "./dom.js";
import { DAY, minute, number, plural } from "./format.js";

const MAX_LISTED = 30;
const SPANS = [
  [1, "a day before"],
  [7, "a week before"],
  [30, "a month before"],
];

/** Return the second time to choose, and the changes between it and the first; `asked` narrows the memories. */
export async function comparison(oldest, other, asOf, asked, set, signal) {
  const shown = asOf ?? Date.now();
  const [earlier, later] = other < shown ? [other, shown] : [shown, other];
  const span = ([days, label]) =>
    h("button", { type: "button", class: "quiet", onclick: () => choose(shown - days * DAY) }, label);
  const choose = (time) => set({ compare: String(Math.max(oldest, time)) });
  return [
    h(
      "div",
      { class: "asof" },
      ...timeRange("Compared with", oldest, other, "Compare with what was known at this time", choose),
      SPANS.filter(([days]) => shown - days * DAY > oldest).map(span),
      h("button", { type: "button", class: "quiet", onclick: () => set({ compare: "" }) }, "End the comparison"),
    ),
    later > earlier
      ? changes(await rpc("memory.compare", { ...asked, earlier, later, limit: MAX_LISTED }, signal))
      : h("p", { class: "hint" }, "Choose two different times."),
  ];
}

function changes(found) {
  const memory = (one) => h("li", {}, link("memory", { id: one.id }, {}, one.content));
  const changed = ({ before, after }) =>
    h("li", {}, link("memory", { id: after.id }, {}, wordDiff(before.content, after.content)));
  const counts = `${number(found.addedCount)} added, ${number(found.changedCount)} changed, ${number(found.endedCount)} no longer held`;
  return h(
    "section",
    { class: "card stack comparison" },
    h("h2", {}, `From ${minute(found.earlier)} to ${minute(found.later)}: ${counts}`),
    h("p", { class: "muted small" }, `${plural(found.before, "memory", "memories")} then, ${number(found.after)} later.`),
    list("Added", found.added.map(memory), found.addedCount),
    list("Changed", found.changed.map(changed), found.changedCount),
    list("No longer held", found.ended.map(memory), found.endedCount),
  );
}

const list = (title, rows, count) =>
  rows.length > 0 &&
  h(
    "div",
    {},
    h("h3", {}, title),
    h("ul", { class: "outline-list" }, rows),
    count > rows.length && h("p", { class: "muted small" }, `and ${number(count - rows.length)} more`),
  );
