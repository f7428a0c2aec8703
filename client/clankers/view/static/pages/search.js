// Search: one box over everything, grouped by where the hits are, each opening at its place.

import { rpc } from "../api.js";
import { badge, empty, facet, fill, heading, link, sameAs, select, time } from "../components.js";
import { h, marked } from "../dom.js";
import { baseName, plural, shortId } from "../format.js";

const MAX_HITS = 100;
const SOURCES = {
  sessions: "Messages and tools",
  memories: "Memories",
  documents: "Documents",
  memory: "Memory files",
  skills: "Skills",
};
const PERIODS = [
  ["", "any time"],
  ["1", "the last day"],
  ["7", "the last week"],
  ["30", "the last month"],
  ["365", "the last year"],
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
  const asked = {
    query,
    scopes: ["*"],
    explain: true,
    recorded: false,
    limit: MAX_HITS,
    project: params.project,
    sources: params.source ? [params.source] : null,
    since: days ? Date.now() - days * 86_400_000 : null,
    mode: params.mode,
    filters: params.role ? [{ field: "role", op: "eq", value: params.role }] : null,
  };
  const [found, projects] = await Promise.all([
    rpc("search", asked, signal),
    rpc("project.list", { limit: 100 }, signal),
  ]);
  const counted = h("aside", { "aria-label": "Narrow the hits" });
  const names = new Map(projects.map((one) => [one.id, one.name]));
  const { sources, project: inProject, since, scopes } = asked;
  const count = () =>
    rpc("search.facets", { query, sources, project: inProject, since, scopes, role: params.role }, signal);
  fill(counted, async () => facets(await count(), params, set, names), signal);
  const options = [["", "all projects"], ...projects.map((one) => [one.id, one.name])];
  if (project && !options.some(([id]) => id === project)) options.push([project, baseName(project)]);
  return [
    heading("Search", h("span", { class: "muted" }, summary(found))),
    h(
      "div",
      { class: "toolbar" },
      select("in", params.project ?? "", options, (value) => set({ project: value })),
      select("from", params.days ?? "", PERIODS, (value) => set({ days: value })),
      select(
        "by",
        params.mode ?? "",
        [
          ["", "words and meaning"],
          ["keyword", "words only"],
          ["vector", "meaning only"],
        ],
        (value) => set({ mode: value }),
      ),
    ),
    found.degraded && h("p", { class: "hint warn" }, found.degraded),
    found.weak && h("p", { class: "hint" }, "Nothing close was found; these are the nearest."),
    h("div", { class: "with-aside" }, h("div", {}, results(found.hits, query)), counted),
    sameAs(`clankers-ctl search ${JSON.stringify(query)}`),
  ];
}

function summary(found) {
  const count = found.hits.length === MAX_HITS ? `the best ${MAX_HITS} hits` : plural(found.hits.length, "hit");
  return `${count} in ${Math.round(found.tookMs)} ms`;
}

function intro() {
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, "Type to search"),
    h(
      "p",
      {},
      "Messages, tool calls and their output, memories, documents, memory files and skills of all projects are searched together, by words and by meaning.",
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
    [...groups.values()].map((group) => h("li", { class: "card group" }, groupHead(group[0]), group.map(hitRow))),
  );
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
    badge(SOURCES[source] ?? source),
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
    hit.duplicates ? h("span", {}, `and ${hit.duplicates} more with the same text`) : null,
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
  return [
    facet(
      "Source",
      values(found.sources),
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
  ];
}
