// Charts as SVG: bars per turn, bars per day, a calendar, a curve. Colours come from the style sheet.

import { h } from "./dom.js";
import { compact, day, dollars, isoDay, number, plural, shortDay } from "./format.js";

const MAX_BARS = 300;
const OUTPUT_WEIGHT = 4; // a written token costs about as much as four that are read

const largest = (turns) =>
  turns.reduce((best, turn) => ((turn.contextTokens ?? 0) > (best.contextTokens ?? 0) ? turn : best));

/** Return what a turn costs, as a share of the session's cost, and the turn that costs most. */
export function turnCosts(turns, cost) {
  const spent = (turn) => (turn.promptTokens ?? 0) + OUTPUT_WEIGHT * (turn.completionTokens ?? 0);
  const all = turns.reduce((sum, turn) => sum + spent(turn), 0);
  const most = turns.reduce((best, turn) => (spent(turn) > spent(best) ? turn : best), turns[0]);
  return {
    expensive: turns.length > 1 && all ? most : null,
    of: (turn) => (cost && spent(turn) ? (cost * spent(turn)) / all : null),
  };
}

/** Return one bar for each turn (of very many, for the largest of several), as high as its context is large; the most expensive turn is marked. */
export function turnStrip(turns, cost, choose) {
  const sized = turns.filter((turn) => turn.contextTokens);
  if (sized.length < 2) return null;
  const most = Math.max(...sized.map((turn) => turn.contextTokens));
  const costs = turnCosts(turns, cost);
  const { expensive } = costs;
  const bundle = Math.ceil(turns.length / MAX_BARS);
  const shown = turns
    .filter((turn, index) => index % bundle === 0)
    .map((turn, index) => {
      const several = turns.slice(index * bundle, (index + 1) * bundle);
      return several.includes(expensive) ? expensive : largest(several);
    });
  const width = 1000 / shown.length;
  const bars = shown.map((turn, index) => {
    const height = Math.max(1, (60 * (turn.contextTokens ?? 0)) / most);
    const share = costs.of(turn) ? ` · about ${dollars(costs.of(turn))}` : "";
    const label = `${turn.text ?? ""}\n${number(turn.contextTokens)} tokens of context${share} · ${plural(turn.tools, "tool call")}`;
    const kind =
      turn === expensive ? "expensive" : turn.compactions ? "compacted" : turn.failedTools || turn.errors ? "bad" : "";
    return h(
      "rect",
      {
        class: `turn ${kind}`,
        x: index * width,
        y: 62 - height,
        width: Math.max(0.5, width - Math.min(2, width * 0.2)),
        height,
        onclick: () => choose(turn),
      },
      h("title", {}, label),
    );
  });
  const share = costs.of(expensive) ? `, about ${dollars(costs.of(expensive))} of ${dollars(cost)}` : "";
  const legend = [
    ["expensive", "most expensive", (turn) => turn === expensive],
    ["compacted", "compacted", (turn) => turn.compactions],
    ["bad", "with a failure", (turn) => turn.failedTools || turn.errors],
  ].filter(([, , applies]) => turns.some(applies));
  return h(
    "figure",
    { class: "strip card" },
    h(
      "figcaption",
      {},
      h("span", {}, "Context per turn"),
      h(
        "span",
        { class: "muted" },
        `up to ${compact(most)} tokens · most expensive: `,
        h(
          "button",
          { type: "button", class: "quiet inline", onclick: () => choose(expensive) },
          `turn ${turns.indexOf(expensive) + 1}${share}`,
        ),
      ),
    ),
    h(
      "svg",
      {
        viewBox: "0 0 1000 62",
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `Context per turn: ${plural(turns.length, "turn")}, at most ${number(most)} tokens`,
      },
      bars,
    ),
    h(
      "p",
      { class: "legend" },
      legend.map(([kind, label]) => h("span", {}, h("span", { class: `dot ${kind}` }), label)),
    ),
  );
}

/** Return bars for days, oldest first; `rows` are [label, value, title]. */
export function dayBars(rows, label) {
  const most = Math.max(1, ...rows.map(([, value]) => value));
  const width = 1000 / Math.max(1, rows.length);
  return h(
    "svg",
    { class: "daybars", viewBox: "0 0 1000 120", preserveAspectRatio: "none", role: "img", "aria-label": label },
    rows.map(([, value, title], index) =>
      h(
        "rect",
        {
          class: "bar",
          x: index * width + width * 0.1,
          y: 120 - (118 * value) / most,
          width: width * 0.8,
          height: value ? Math.max(2, (118 * value) / most) : 0,
          rx: 2,
        },
        h("title", {}, title),
      ),
    ),
  );
}

const CELL = 14;
const CALENDAR_LEFT = 28;
const CALENDAR_TOP = 14;

/** Return a calendar of weeks; a day is darker the more happened on it. `counts` maps local dates to numbers. */
export function calendar(counts, weeks = 26) {
  const most = Math.max(1, ...counts.values());
  const today = new Date();
  const first = new Date(
    today.getFullYear(),
    today.getMonth(),
    today.getDate() - ((today.getDay() + 6) % 7) - 7 * (weeks - 1),
  );
  const cells = [];
  const label = (x, y, text) => cells.push(h("text", { class: "calendar-label", x, y }, text));
  for (let index = 0; index < weeks * 7; index += 1) {
    const date = new Date(first.getFullYear(), first.getMonth(), first.getDate() + index);
    if (date > today) break;
    const [x, y] = [CALENDAR_LEFT + Math.floor(index / 7) * CELL, CALENDAR_TOP + (index % 7) * CELL];
    if (date.getDate() <= 7 && index % 7 === 0) label(x, 9, date.toLocaleDateString(undefined, { month: "short" }));
    if (index < 7 && index % 2 === 0) label(0, y + 9, date.toLocaleDateString(undefined, { weekday: "short" }));
    const count = counts.get(isoDay(date)) ?? 0;
    const level = count ? Math.ceil((4 * Math.log1p(count)) / Math.log1p(most)) : 0;
    cells.push(
      h(
        "rect",
        { class: `cell level-${level}`, x, y, width: 11, height: 11, rx: 2 },
        h("title", {}, `${day(date.getTime())}: ${plural(count, "message")}`),
      ),
    );
  }
  return h(
    "svg",
    {
      class: "calendar",
      viewBox: `0 0 ${CALENDAR_LEFT + weeks * CELL} ${CALENDAR_TOP + 98}`,
      role: "img",
      "aria-label": `Messages per day of the last ${weeks} weeks`,
    },
    cells,
  );
}

/** Return the strength of a memory over time: past solid, future dashed, the archive line, a dot for each use. */
export function strengthCurve({ past, future, uses, archiveBelow, archiveAt }) {
  const [from, now, to] = [past[0].at, past.at(-1).at, future.at(-1).at];
  // The past takes a third of the width, however short it is beside the future.
  const x = (at) =>
    at <= now ? 40 + (320 * (at - from)) / Math.max(1, now - from) : 360 + (620 * (at - now)) / Math.max(1, to - now);
  const y = (value) => 150 - 140 * value;
  const line = (points) =>
    points
      .map(({ at, salience }, index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(salience).toFixed(1)}`)
      .join("");
  const salienceAt = (at) =>
    past.reduce((best, point) => (Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best), past[0]).salience;
  const label = `Strength ${past.at(-1).salience.toFixed(2)} now; ${archiveAt ? `archived about ${day(archiveAt)} if it is not used again` : "it is not archived within ten years"}`;
  return h(
    "figure",
    { class: "curve" },
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "Strength over time" },
      h(
        "svg",
        { viewBox: "0 0 1000 172", role: "img", "aria-label": label },
        [0, 0.5, 1].map((value) =>
          h(
            "g",
            {},
            h("line", { class: "grid", x1: 40, x2: 980, y1: y(value), y2: y(value) }),
            h("text", { x: 32, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(1)),
          ),
        ),
        h("line", { class: "archive", x1: 40, x2: 980, y1: y(archiveBelow), y2: y(archiveBelow) }),
        h("line", { class: "now", x1: x(past.at(-1).at), x2: x(past.at(-1).at), y1: 5, y2: 150 }),
        [
          [from, "start", shortDay(from)],
          [now, "middle", "now"],
          [to, "end", shortDay(to)],
        ].map(([at, anchor, text]) => h("text", { x: x(at), y: 168, "text-anchor": anchor }, text)),
        h("path", { class: "past", d: line(past) }),
        h("path", { class: "future", d: line(future) }),
        uses.map((use) =>
          h(
            "circle",
            { class: "use", cx: x(use.at), cy: y(salienceAt(use.at)), r: 4 },
            h("title", {}, `${use.usage} ${day(use.at)}`),
          ),
        ),
      ),
    ),
    h(
      "figcaption",
      { class: "muted small" },
      `${label}. The dashed line is what is expected; below the thin line it is archived; dots are uses.`,
    ),
  );
}
