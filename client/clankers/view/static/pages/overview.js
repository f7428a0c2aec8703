// Overview: what was captured, by whom, at what cost, and what needs attention.

import { rpc } from "../api.js";
import { badge, empty, fill, heading, link, loading, select, time } from "../components.js";
import { calendar, dayBars } from "../charts.js";
import { h } from "../dom.js";
import { baseName, bytes, compact, dollars, duration, isoDay, number, percent, plural, shortDay } from "../format.js";
import { sessionRow } from "./sessions.js";

const PERIODS = [
  ["7", "7 days"],
  ["30", "30 days"],
  ["365", "a year"],
];
const CALENDAR_DAYS = 183;
const MEASURES = {
  tokens: ["Tokens", (one) => one.promptTokens + one.completionTokens, (value) => compact(value)],
  cost: ["Cost", (one) => one.cost ?? 0, (value) => dollars(value)],
  sessions: ["Sessions", (one) => one.sessions, (value) => number(value)],
};
const STATES = { alive: "good", quiet: "", dead: "bad", never: "" };

export async function render({ params, set, signal, onChange, refresh }) {
  const days = Number(params.days ?? 7);
  const since = Date.now() - days * 86_400_000;
  const [health, status, capture, index, sessions] = await Promise.all([
    rpc("health", {}, signal),
    rpc("daemon.status", {}, signal),
    rpc("capture.status", {}, signal),
    rpc("index.status", {}, signal),
    rpc("session.list", { limit: 5, topLevel: true, skipShort: true }, signal),
  ]);
  let first = true;
  onChange(({ type }) => {
    if (type === "reread" && !first) refresh();
    first = false;
  });
  if (!status.counts.sessions) return [heading("Welcome to clankers"), firstStart(capture), attention(health, capture)];
  return [
    heading(
      "Overview",
      h("span", { class: "muted" }, health.ok ? "Everything is stored." : "There is a problem."),
      h(
        "span",
        { class: "end" },
        select("of the last", String(days), PERIODS, (value) => set({ days: value })),
      ),
    ),
    attention(health, capture),
    figures(days, since, status, MEASURES[params.per] ? params.per : "tokens", set, signal),
    h(
      "div",
      { class: "columns" },
      h("section", { class: "card" }, h("h2", {}, "Capture"), harnesses(capture)),
      machine(status, index),
    ),
    h(
      "section",
      { class: "recent" },
      h("h2", {}, "Last sessions"),
      h(
        "ol",
        { class: "rows" },
        sessions.sessions.map((one) => h("li", {}, sessionRow(one))),
      ),
    ),
  ];
}

/** Return what is added up over many messages; it is filled in when it is known. */
function figures(days, since, status, measure, set, signal) {
  const element = h("div", {}, loading("Adding up"));
  const make = async () => {
    const stats = await rpc("stats", { since, limit: 31, calendarDays: CALENDAR_DAYS }, signal);
    const perDay = new Map(stats.calendar.map((one) => [one.day, one.messages]));
    return [
      tiles(stats.totals, status),
      h(
        "div",
        { class: "columns" },
        usage(stats, days, measure, set),
        h("section", { class: "card" }, h("h2", {}, "Messages per day"), calendar(perDay)),
        table("Projects", stats.byProject),
        table("Models", stats.byModel),
        tools(stats.tools),
      ),
    ];
  };
  fill(element, make, signal);
  return element;
}

function firstStart(capture) {
  const seen = capture.harnesses.filter((one) => one.lastActivityAt);
  const found = seen.length
    ? `On this machine are: ${seen.map((one) => one.harness).join(", ")}.`
    : "Connect a coding agent, then start a session of it as usual.";
  return empty(
    "Nothing has been captured yet",
    `${found} What an agent does appears here while it works. You can also import the history that is already there.`,
    "clankers-ctl setup",
    "clankers-ctl import claude-code",
  );
}

function attention(health, capture) {
  const rows = [];
  if (!health.ok) rows.push(["bad", health.problem]);
  if (health.degraded) rows.push(["", health.degraded]);
  for (const warning of health.warnings ?? []) rows.push(["", warning]);
  for (const one of capture.harnesses) if (one.state === "dead") rows.push(["bad", one.explanation]);
  if (capture.spool.rejected)
    rows.push([
      "bad",
      `${plural(capture.spool.rejected, "event")} could not be stored: see clankers-ctl capture status.`,
    ]);
  if (capture.lost?.count)
    rows.push(["bad", `Hooks lost ${plural(capture.lost.count, "event")}: ${capture.lost.lastReason}`]);
  for (const pause of capture.paused ?? [])
    rows.push(["", `Capture is paused ${pause.project ? `in ${pause.project}` : "everywhere"}.`]);
  if (!rows.length) return null;
  return h(
    "section",
    { "aria-label": "Needs attention" },
    h(
      "ul",
      { class: "attention" },
      rows.map(([kind, text]) => h("li", { class: kind }, text)),
    ),
  );
}

function tiles(totals, status) {
  const tile = (value, label) => h("div", { class: "card tile" }, h("b", {}, value), h("span", {}, label));
  return h(
    "div",
    { class: "tiles" },
    tile(number(totals.sessions), "sessions"),
    tile(number(totals.messages), "messages"),
    tile(number(totals.tools), `tool calls, ${number(totals.failedTools)} failed`),
    tile(compact(totals.promptTokens + totals.completionTokens), "tokens"),
    tile(dollars(totals.cost), "reported cost"),
    tile(number(status.counts.memories ?? null), "memories in all"),
  );
}

/** Return one bar for each day: tokens, reported cost or sessions, as chosen. */
function usage(stats, days, measure, set) {
  const byDay = new Map(stats.byDay.map((one) => [one.name, one]));
  const shown = Math.min(days, 31);
  const [title, valueOf, format] = MEASURES[measure];
  const rows = Array.from({ length: shown }, (_, index) => {
    const date = new Date(Date.now() - (shown - 1 - index) * 86_400_000);
    const one = byDay.get(isoDay(date));
    const facts = one
      ? [plural(one.sessions, "session"), `${number(one.promptTokens + one.completionTokens)} tokens`]
      : ["nothing"];
    if (one) facts.push(one.cost ? dollars(one.cost) : "cost unknown");
    return [shortDay(date.getTime()), one ? valueOf(one) : 0, `${shortDay(date.getTime())}: ${facts.join(", ")}`];
  });
  const most = Math.max(...rows.map(([, value]) => value));
  const options = Object.entries(MEASURES).map(([key, [name]]) => [key, name]);
  return h(
    "section",
    { class: "card" },
    h(
      "div",
      { class: "heading-row" },
      h("h2", {}, "Per day"),
      h("span", { class: "muted small" }, most ? `up to ${format(most)}` : "nothing reported"),
      h(
        "span",
        { class: "end" },
        select("show", measure, options, (value) => set({ per: value })),
      ),
    ),
    dayBars(rows, `${title} per day of the last ${shown} days: ${rows.map(([day, value]) => `${day} ${format(value)}`).join(", ")}`),
    h("p", { class: "axis" }, h("span", {}, rows[0][0]), h("span", {}, rows.at(-1)[0])),
  );
}

function harnesses(capture) {
  const row = (one) =>
    h(
      "tr",
      {},
      h("td", {}, link("sessions", { source: one.harness, short: "show" }, {}, one.harness)),
      h("td", {}, badge(one.state, STATES[one.state], one.explanation)),
      h("td", {}, one.lastEventAt ? time(one.lastEventAt) : h("span", { class: "muted" }, "never")),
      h("td", { class: "num" }, one.events ? number(one.events) : "–"),
    );
  return h(
    "div",
    { class: "scroll", tabindex: 0 },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Harness", "State", "Last event"].map((title) => h("th", { scope: "col" }, title)),
          h("th", { scope: "col", class: "num" }, "Hook events"),
        ),
      ),
      h("tbody", {}, capture.harnesses.map(row)),
    ),
  );
}

function table(title, rows) {
  if (!rows.length) return null;
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, title),
    ["Sessions", "Tokens", "Cost"].map((name) => h("th", { scope: "col", class: "num" }, name)),
  );
  const row = (one) =>
    h(
      "tr",
      {},
      h("td", { title: one.name }, one.name?.startsWith("/") ? baseName(one.name) : (one.name ?? "unknown")),
      h("td", { class: "num" }, number(one.sessions)),
      h("td", { class: "num" }, compact(one.promptTokens + one.completionTokens)),
      h("td", { class: "num" }, one.cost ? dollars(one.cost) : "–"),
    );
  return h(
    "section",
    { class: "card" },
    h("table", {}, h("thead", {}, head), h("tbody", {}, rows.slice(0, 8).map(row))),
  );
}

function tools(rows) {
  if (!rows.length) return null;
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "Tool"),
    ["Calls", "Failed", "Mean time"].map((name) => h("th", { scope: "col", class: "num" }, name)),
  );
  const row = (one) =>
    h(
      "tr",
      {},
      h("td", {}, one.name),
      h("td", { class: "num" }, number(one.calls)),
      h("td", { class: "num" }, one.failures ? `${number(one.failures)} (${percent(one.failureRate)})` : "0"),
      h("td", { class: "num" }, duration(one.meanDurationMs) || "–"),
    );
  return h(
    "section",
    { class: "card" },
    h("table", {}, h("thead", {}, head), h("tbody", {}, rows.slice(0, 8).map(row))),
  );
}

function machine(status, index) {
  const pending = (index.backlog ?? 0) + (index.live?.pending ?? 0);
  const rows = [
    ["Version", status.version],
    ["Running for", duration(status.uptimeSeconds * 1000)],
    ["Database", status.sizes ? bytes(status.sizes.database) : "unknown"],
    ["Memory in use", bytes(status.memoryBytes)],
    ["Index", pending ? `${plural(pending, "chunk")} pending` : "up to date"],
    ["Vector search", index.vectors],
  ];
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Daemon"),
    h(
      "table",
      {},
      h(
        "tbody",
        {},
        rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value))),
      ),
    ),
    link("index", {}, {}, "Health and index"),
  );
}
