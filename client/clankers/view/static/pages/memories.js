// Memories: list, facets, what was believed at another time, and changes in bulk with undo.

import { change, rpc } from "../api.js";
import {
  attempt,
  badge,
  confirm,
  empty,
  facet,
  facts,
  heading,
  link,
  notice,
  pages,
  sameAs,
  select,
  side,
  time,
  timeSlider,
} from "../components.js";
import { wordDiff } from "../diff.js";
import { debounce, h } from "../dom.js";
import { baseName, DAY, day, number, percent, plural } from "../format.js";

const PAGE_ROWS = 50;
const MAX_COMPARED = 500;
const ALL = { scopes: ["*"] };
const STATES = ["current", "superseded", "archived", "deleted", "expired", "upcoming"];

export async function render(context) {
  const { params, set, signal } = context;
  const asOf = params.asof ? Number(params.asof) : null;
  const asked = {
    ...ALL,
    asOf,
    limit: PAGE_ROWS,
    query: params.query,
    sector: params.sector,
    tier: params.tier,
    category: params.category,
    pinned: params.pinned ? true : null,
    sort: params.sort,
    include: asOf ? null : [params.state ?? "current"],
    scopes: params.scope ? [params.scope] : ["*"],
  };
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
  const bulk = bulkBar(context, chosen);
  const row = (memory) => h("li", {}, memoryCard(memory, asOf, chosen, bulk.update));
  const typed = debounce((value) => set({ query: value }, { replaced: true }));
  return [
    heading(
      "Memories",
      h(
        "span",
        { class: "muted" },
        `${plural(stats.current, "current memory", "current memories")} of ${number(stats.total)}`,
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
    ),
    timeTravel(stats, asOf, params, set),
    params.compare ? await comparison(Number(params.compare), asOf ?? Date.now(), signal) : null,
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

/** Let the owner look at another time: what was known then, and what changed since. */
function timeTravel(stats, asOf, params, set) {
  const aWeekAgo = () => String(Math.max(stats.oldest, Date.now() - 7 * DAY));
  return timeSlider(
    stats.oldest,
    asOf,
    set,
    h(
      "button",
      { type: "button", class: "quiet", onclick: () => set({ compare: params.compare ? "" : aWeekAgo() }) },
      params.compare ? "End the comparison" : "Compare with a week ago",
    ),
  );
}

/** Show what changed between two times. */
async function comparison(from, to, signal) {
  const at = async (asOf) =>
    new Map(
      (await rpc("memory.list", { ...ALL, asOf, limit: MAX_COMPARED }, signal)).memories.map((memory) => [
        memory.id,
        memory,
      ]),
    );
  const [before, after] = await Promise.all([at(from), at(to)]);
  const added = [...after.values()].filter((memory) => !before.has(memory.id));
  const gone = [...before.values()].filter((memory) => !after.has(memory.id));
  const changed = [...after.values()].filter(
    (memory) => before.has(memory.id) && before.get(memory.id).content !== memory.content,
  );
  const list = (title, rows) => rows.length > 0 && [h("h3", {}, title), h("ul", { class: "outline-list" }, rows)];
  const row = (memory) => h("li", {}, link("memory", { id: memory.id }, {}, memory.content));
  return h(
    "section",
    { class: "card stack" },
    h(
      "h2",
      {},
      `From ${day(from)} to ${day(to)}: ${number(added.length)} added, ${number(changed.length)} changed, ${number(gone.length)} no longer held`,
    ),
    list("Added", added.slice(0, 30).map(row)),
    list(
      "Changed",
      changed.map((memory) => h("li", {}, wordDiff(before.get(memory.id).content, memory.content))),
    ),
    list("No longer held", gone.map(row)),
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

/** Return the bar for changes of the chosen memories. */
function bulkBar(context, chosen) {
  const element = h("div", { class: "bulk", role: "region", "aria-label": "Change the chosen memories", hidden: true });
  const again = context.refresh;
  const each = async (method, memories, extra = {}) => {
    for (const memory of memories) await change(method, { id: memory.id, ...ALL, ...extra });
    again();
  };
  const forget = async () => {
    const memories = [...chosen.values()];
    const text = plural(memories.length, "memory", "memories");
    if (!(await confirm(`Forget ${text}?`, "Agents are not told them any more. You can restore them.", "Forget")))
      return;
    if (await attempt(() => each("memory.delete", memories)))
      notice(`${text} forgotten.`, () => each("memory.restore", memories));
  };
  const pin = async () => {
    const memories = [...chosen.values()];
    if (await attempt(() => each("memory.pin", memories, { pinned: true })))
      notice("Pinned.", () => each("memory.pin", memories, { pinned: false }));
  };
  const restore = () => attempt(() => each("memory.restore", [...chosen.values()]));
  const merge = async () => {
    const [newer, older] = [...chosen.values()].sort((a, b) => b.createdAt - a.createdAt);
    if (!(await confirm("Merge two memories?", `“${newer.content}” replaces “${older.content}”.`, "Merge"))) return;
    if (await attempt(() => change("relation.add", { source: newer.id, target: older.id, type: "SUPERSEDES", ...ALL })))
      notice("Merged: the older one is superseded.");
    again();
  };
  const button = (label, action, kind = "") => h("button", { type: "button", class: kind, onclick: action }, label);
  function update() {
    element.hidden = !chosen.size;
    const states = new Set([...chosen.values()].map((memory) => memory.state));
    element.replaceChildren(
      h("span", {}, `${number(chosen.size)} chosen`),
      button("Pin", pin),
      ...(chosen.size === 2 ? [button("Merge", merge)] : []),
      states.has("deleted") || states.has("archived") ? button("Restore", restore) : button("Forget", forget, "danger"),
    );
  }
  return { element, update };
}
