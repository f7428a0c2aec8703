// Search: one box over everything, grouped by where the hits are, each opening at its place.
// Whole inputs and outputs of tool calls are a source of their own: they are read, not looked up in the index.

import { rpc } from "../api.js";
import {
  badge,
  empty,
  facet,
  fill,
  heading,
  link,
  nothingCaptured,
  pages,
  sameAs,
  select,
  side,
  time,
} from "../components.js";
import { h, marked } from "../dom.js";
import { baseName, moment, number, plural, shortId } from "../format.js";

const MAX_HITS = 100;
const HITS_PER_GROUP = 5;
const CALLS_PER_PAGE = 50;
const CALLS = "calls";
const SOURCES = {
  sessions: "Messages and commands",
  memories: "Memories",
  documents: "Documents",
  memory: "Memory files",
  skills: "Skills",
  [CALLS]: "Tool input and output",
};
const PERIODS = [
  ["", "any time"],
  ["1", "the last day"],
  ["7", "the last week"],
  ["30", "the last month"],
  ["365", "the last year"],
];
const MODES = [
  ["", "words and meaning"],
  ["keyword", "words only"],
  ["vector", "meaning only"],
];
const SIGNALS = {
  keyword: "words",
  vector: "meaning",
  graph: "links",
  recency: "recency",
  salience: "strength",
  importance: "weight",
};

export async function render({ params, set, signal, project }) {
  const query = params.q?.trim() ?? "";
  if (!query) return [heading("Search"), intro()];
  const days = Number(params.days ?? 0);
  const since = days ? Date.now() - days * 86_400_000 : null;
  const ofCalls = params.source === CALLS;
  const search = ofCalls ? searchCalls : searchIndex;
  const [found, projects] = await Promise.all([
    search({ query, project: params.project, since }, params, set, signal),
    rpc("project.list", { limit: 100 }, signal),
  ]);
  if (!found.count && !projects.length) return [heading("Search"), nothingCaptured()];
  const counted = h("aside", { "aria-label": "Narrow the hits" });
  const names = new Map(projects.map((one) => [one.id, one.name]));
  const sources = params.source && !ofCalls ? [params.source] : null;
  const narrowed = { query, sources, project: params.project, since, scopes: ["*"], role: params.role };
  const count = () => rpc("search.facets", narrowed, signal);
  fill(counted, async () => facets(await count(), params, set, names), signal);
  const options = [["", "all projects"], ...projects.map((one) => [one.id, one.name])];
  if (project && !options.some(([id]) => id === project)) options.push([project, baseName(project)]);
  return [
    heading("Search", h("span", { class: "muted" }, found.summary)),
    h(
      "div",
      { class: "toolbar" },
      select("in", params.project ?? "", options, (value) => set({ project: value })),
      select("from", params.days ?? "", PERIODS, (value) => set({ days: value })),
      ofCalls ? null : select("by", params.mode ?? "", MODES, (value) => set({ mode: value })),
    ),
    found.notes,
    h("div", { class: "with-aside" }, h("div", {}, found.content), counted),
    sameAs(`clankers-ctl search ${JSON.stringify(query)}${ofCalls ? " --tool-calls" : ""}`),
  ];
}

/** Search the index: messages, what tools were used on, memories, documents, files and skills. */
async function searchIndex(asked, params, set, signal) {
  const found = await rpc(
    "search",
    {
      ...asked,
      scopes: ["*"],
      explain: true,
      recorded: false,
      limit: MAX_HITS,
      sources: params.source ? [params.source] : null,
      mode: params.mode,
      filters: params.role ? [{ field: "role", op: "eq", value: params.role }] : null,
    },
    signal,
  );
  const count = found.hits.length === MAX_HITS ? `the best ${MAX_HITS} hits` : plural(found.hits.length, "hit");
  const inCalls = h(
    "p",
    { class: "hint" },
    h("button", { type: "button", onclick: () => set({ source: CALLS }) }, "Search the input and output of all tool calls"),
  );
  return {
    count: found.hits.length,
    summary: `${count} in ${Math.round(found.tookMs)} ms`,
    notes: [
      found.degraded && h("p", { class: "hint warn" }, `Incomplete: ${found.degraded}.`),
      found.weak && h("p", { class: "hint" }, "Nothing close was found; these are the nearest."),
    ],
    content: [results(found.hits, asked.query), found.weak || !found.hits.length ? inCalls : null],
  };
}

/** Read the stored input and output of tool calls, newest first, a second at a time. */
async function searchCalls(asked, params, set, signal) {
  const note = h("p", { class: "hint", role: "status" });
  let hits = 0;
  let calls = 0;
  const read = async (cursor) => {
    const page = await rpc("tool.search", { ...asked, limit: CALLS_PER_PAGE, cursor }, signal);
    hits += page.hits.length;
    calls += page.scanned;
    note.textContent = page.cursor
      ? `Searched the newest ${number(calls)} tool calls, back to ${moment(page.scannedBackTo)}. Load more to search older ones.`
      : `Searched all ${number(calls)} tool calls.`;
    return { rows: [...bySession(page.hits).values()], cursor: page.cursor, tookMs: page.tookMs };
  };
  const first = await read(null);
  const list = pages(first, read, (group) => h("li", { class: "card group" }, callsHead(group[0]), group.map(callRow)), {
    class: "groups",
  });
  const none = empty("No tool call has all of these words", "Words are compared letter by letter. Try fewer of them.");
  return {
    count: hits,
    summary: `${plural(hits, "tool call")}${first.cursor ? " so far" : ""} in ${Math.round(first.tookMs)} ms`,
    notes: note,
    content: hits || first.cursor ? list : none,
  };
}

function bySession(hits) {
  const groups = new Map();
  for (const hit of hits) groups.set(hit.sessionId, [...(groups.get(hit.sessionId) ?? []), hit]);
  return groups;
}

const callsHead = (hit) =>
  h(
    "h2",
    { class: "group-head" },
    h("span", {}, hit.sessionTitle || "Untitled session"),
    hit.projectPath && badge(baseName(hit.projectPath)),
  );

function callRow(hit) {
  const q = new URLSearchParams(location.search).get("q");
  return h(
    "div",
    { class: "hit" },
    link(
      "session",
      { id: hit.sessionId, at: hit.toolId, q },
      { class: "hit-link", data: { row: "" } },
      h(
        "span",
        { class: "facts" },
        h("span", {}, hit.toolName),
        hit.filePath && h("span", {}, baseName(hit.filePath)),
        h("span", {}, time(hit.createdAt)),
        hit.success === false ? badge("failed", "bad") : null,
      ),
      h("span", { class: "snippet" }, marked(hit.snippet)),
    ),
  );
}

function intro() {
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, "Type to search"),
    h(
      "p",
      {},
      "Messages, commands and errors of tools, memories, documents, memory files and skills of all projects are searched together, by words and by meaning. The whole input and output of tool calls is one more source beside the hits.",
    ),
    h(
      "p",
      {},
      h("kbd", {}, "/"),
      " moves to the box, ",
      h("kbd", {}, "j"),
      " and ",
      h("kbd", {}, "k"),
      " move through the hits.",
    ),
  );
}

/** Group the hits by session, memory, document or file; a group stands where its best hit is. */
function results(hits, query) {
  if (!hits.length)
    return empty("Nothing was found", `Nothing stored matches “${query}”. Try other words, or fewer filters.`);
  const groups = new Map();
  for (const hit of hits) {
    const key =
      hit.ref.sessionId ?? hit.ref.memoryId ?? hit.ref.documentId ?? hit.ref.path ?? hit.ref.skillId ?? hit.chunkId;
    groups.set(key, [...(groups.get(key) ?? []), hit]);
  }
  return h(
    "ol",
    { class: "groups" },
    [...groups.values()].map((group) => h("li", { class: "card group" }, groupHead(group[0]), firstHits(group))),
  );
}

/** Return the best hits of a group, and a button for the others: one long session must not hide the rest. */
function firstHits(group) {
  const rest = group.slice(HITS_PER_GROUP);
  if (rest.length < 2) return group.map(hitRow);
  const button = h(
    "button",
    { type: "button", class: "quiet rest", onclick: () => button.replaceWith(...rest.map(hitRow)) },
    `Show ${number(rest.length)} more hits here`,
  );
  return [...group.slice(0, HITS_PER_GROUP).map(hitRow), button];
}

function groupHead({ source, ref }) {
  const title =
    ref.sessionTitle ??
    ref.documentTitle ??
    (source === "memories" ? "Memory" : null) ??
    ref.path ??
    "Untitled session";
  return h(
    "h2",
    { class: "group-head" },
    h("span", {}, title),
    source === "memories" ? null : badge(SOURCES[source] ?? source),
    ref.projectPath && badge(baseName(ref.projectPath)),
    ref.memoryCategory && badge(ref.memoryCategory),
  );
}

function target({ source, ref, chunkId }) {
  if (ref.memoryId) return ["memory", { id: ref.memoryId }];
  if (ref.sessionId) return ["session", { id: ref.sessionId, at: ref.toolId ?? ref.messageId }];
  if (ref.documentId) return ["document", { id: ref.documentId }];
  if (ref.skillId) return ["skill", { id: ref.skillId }];
  return ["search", { q: chunkId, source }];
}

function hitRow(hit) {
  const [page, params] = target(hit);
  const place = hit.ref.path
    ? `${hit.ref.path}${hit.ref.startLine ? `:${hit.ref.startLine}` : ""}`
    : (hit.ref.role ?? (hit.ref.toolId ? "tool call" : ""));
  const head = h(
    "span",
    { class: "facts" },
    place && h("span", {}, place),
    h("span", {}, time(hit.createdAt)),
    hit.duplicates ? h("span", {}, `and ${number(hit.duplicates)} more with nearly the same text`) : null,
  );
  const body = h("span", { class: "snippet" }, marked(hit.snippet || hit.text.slice(0, 300)));
  const openable = page !== "search";
  return h(
    "div",
    { class: "hit" },
    openable
      ? link(
          page,
          { ...params, q: new URLSearchParams(location.search).get("q") },
          { class: "hit-link", data: { row: "" } },
          head,
          body,
        )
      : h("div", { class: "hit-link", tabindex: 0, data: { row: "" } }, head, body),
    scoreBars(hit),
  );
}

/** Explain a score: one bar for each signal that has a part in it. */
function scoreBars({ score, components }) {
  const parts = Object.entries(components ?? {}).filter(([name, value]) => name in SIGNALS && value > 0);
  const label = `Score ${score.toFixed(2)}${parts.length ? `: ${parts.map(([name, value]) => `${SIGNALS[name] ?? name} ${value.toFixed(2)}`).join(", ")}` : ""}`;
  return h(
    "div",
    { class: "score", role: "img", "aria-label": label, title: label },
    h("b", {}, score.toFixed(2)),
    parts
      .slice(0, 4)
      .map(([name, value]) =>
        h(
          "span",
          { class: "signal" },
          h("i", {}, SIGNALS[name] ?? name),
          h(
            "span",
            { class: "bar-track" },
            h("span", { class: "bar-fill", style: { width: `${Math.min(100, Math.round(value * 100))}%` } }),
          ),
        ),
      ),
  );
}

/** Return the facets. They count all texts with the words, not only the hits that are shown. */
function facets(found, params, set, names) {
  const values = (list) => list.map((one) => [one.value, one.count]);
  const which = found.words === "all" ? "all of the words" : "one of the words";
  const total = `${found.capped ? "more than " : ""}${plural(found.total, "text")}`;
  return side(
    "Narrow the hits",
    facet(
      "Source",
      [...values(found.sources), [CALLS, null]],
      params.source,
      (value) => set({ source: value }),
      (value) => SOURCES[value] ?? value,
    ),
    facet("Written by", values(found.roles), params.role, (value) => set({ role: value })),
    facet(
      "Project",
      values(found.projects),
      params.project,
      (value) => set({ project: value }),
      (value) => names.get(value) ?? shortId(value),
    ),
    h("p", { class: "muted small" }, `Counts are of all stored texts that contain ${which}: ${total}.`),
  );
}
