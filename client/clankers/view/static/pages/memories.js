// Memories: list, facets, what was believed at another time, and changes in bulk with undo.

import { rpc } from "../api.js";
import { bulkBar } from "../bulk.js";
import {
  badge,
  empty,
  facet,
  facts,
  heading,
  link,
  pages,
  sameAs,
  select,
  side,
  time,
  timeSlider,
  toggle,
} from "../components.js";
import { comparison } from "../comparison.js";
import { debounce, h } from "../dom.js";
import { baseName, DAY, minute, number, percent, plural } from "../format.js";

const PAGE_ROWS = 50;
const ALL = { scopes: ["*"] };
const STATES = ["current", "superseded", "archived", "deleted", "expired", "upcoming"];

export async function render(context) {
  const { params, set, signal } = context;
  const asOf = params.asof ? Number(params.asof) : null;
  const narrowed = {
    query: params.query,
    sector: params.sector,
    tier: params.tier,
    category: params.category,
    pinned: params.pinned ? true : null,
    scopes: params.scope ? [params.scope] : ["*"],
  };
  const states = asOf ? null : [params.state ?? "current"];
  const asked = { ...narrowed, asOf, states, sort: params.sort, limit: PAGE_ROWS };
  const [stats, first, projects] = await Promise.all([
    rpc("memory.stats", ALL, signal),
    rpc("memory.list", asked, signal),
    rpc("project.list", { limit: 200 }, signal),
  ]);
  if (!stats.total) return [heading("Memories"), nothing()];
  const next = async (cursor) => {
    const page = await rpc("memory.list", { ...asked, cursor });
    return { rows: page.memories, cursor: page.cursor };
  };
  const chosen = new Map();
  const bulk = bulkBar(chosen, context.refresh);
  const row = (memory) => h("li", {}, memoryCard(memory, asOf, chosen, bulk.update));
  const typed = debounce((value) => set({ query: value }, { replaced: true }));
  return [
    heading(
      "Memories",
      h(
        "span",
        { class: "muted" },
        asOf
          ? `as known on ${minute(asOf)}`
          : `${plural(stats.current, "current memory", "current memories")} of ${number(stats.total)}`,
      ),
    ),
    h(
      "div",
      { class: "toolbar" },
      h("input", {
        type: "search",
        "aria-label": "Contains",
        placeholder: "Contains …",
        value: params.query ?? "",
        oninput: (event) => typed(event.target.value),
      }),
      select(
        "sorted by",
        params.sort ?? "created",
        [
          ["created", "creation"],
          ["updated", "change"],
          ["salience", "strength"],
          ["importance", "importance"],
          ["accessed", "last use"],
        ],
        (value) => set({ sort: value }),
      ),
      !asOf && first.memories.length > 1 ? toggle("Choose all shown", false, chooseAll) : null,
    ),
    timeSlider(stats.oldest, asOf, set, params.compare ? null : startComparison(stats, asOf, set)),
    params.compare ? await comparison(stats.oldest, Number(params.compare), asOf, narrowed, set, signal) : null,
    bulk.element,
    h(
      "div",
      { class: "with-aside" },
      h(
        "div",
        {},
        first.memories.length
          ? pages({ rows: first.memories, cursor: first.cursor }, next, row, { class: "cards" })
          : empty("No memory matches", "Change or remove the filters."),
      ),
      asOf ? null : aside(stats, params, set, new Map(projects.map((one) => [one.id, one.name]))),
    ),
    sameAs("clankers-ctl memory list"),
  ];
}

/** Choose all memories that are listed, or none of them. */
function chooseAll(checked) {
  for (const box of document.querySelectorAll(".memory > input[type=checkbox]"))
    if (box.checked !== checked) box.click();
}

const startComparison = (stats, asOf, set) => {
  const weekBefore = String(Math.max(stats.oldest, (asOf ?? Date.now()) - 7 * DAY));
  return h(
    "button",
    { type: "button", class: "quiet", onclick: () => set({ compare: weekBefore }) },
    "Compare with another time",
  );
};

const nothing = () =>
  empty(
    "There are no memories yet",
    "Agents store memories through the MCP tools, clankers extracts them from sessions, and you can add one yourself.",
    'clankers-ctl memory add "We deploy on Tuesdays"',
  );

function aside(stats, params, set, names) {
  const pairs = (counts) =>
    Object.entries(counts)
      .sort((a, b) => b[1] - a[1])
      .slice(0, 12);
  const choose = (name) => (value) => set({ [name]: value });
  return h(
    "aside",
    { "aria-label": "Narrow the list" },
    side(
      "Narrow the list",
      facet(
        "State",
        STATES.map((state) => [state, stats[state]]),
        params.state ?? "current",
        choose("state"),
      ),
      facet("Category", pairs(stats.byCategory), params.category, choose("category")),
      facet("Kind", pairs(stats.bySector), params.sector, choose("sector")),
      facet("Scope", pairs(stats.byScope), params.scope, choose("scope"), (scope) =>
        scope.startsWith("project:") ? (names.get(scope.slice(8)) ?? scope) : scope,
      ),
      facet("Pinned", [["yes", stats.pinned]], params.pinned, choose("pinned")),
      h("p", { class: "muted small" }, "Counts are of all current memories, without the other filters."),
    ),
  );
}

function memoryCard(memory, asOf, chosen = null, update = null) {
  const gone = memory.state !== "current";
  const box =
    chosen &&
    !asOf &&
    h("input", {
      type: "checkbox",
      "aria-label": "Choose this memory",
      onchange: (event) => (event.target.checked ? chosen.set(memory.id, memory) : chosen.delete(memory.id), update()),
    });
  return h(
    "article",
    { class: `card memory ${gone ? "gone" : ""}` },
    box,
    link("memory", { id: memory.id }, { class: "content", data: { row: "" } }, memory.content),
    facts(
      memory.pinned ? badge("pinned", "good") : null,
      gone ? badge(memory.state, "warn") : null,
      memory.category,
      memory.projectName ?? baseName(memory.projectPath) ?? null,
      h(
        "span",
        { class: "strength", title: `Strength ${memory.salience.toFixed(2)}` },
        "strength",
        h(
          "span",
          { class: "bar-track" },
          h("span", { class: "bar-fill", style: { width: percent(memory.salience).replace(" ", "") } }),
        ),
      ),
      memory.accessCount ? `used ${plural(memory.accessCount, "time")}` : "never used",
      time(memory.createdAt),
    ),
  );
}
