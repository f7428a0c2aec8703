// Sessions: a list by day, sub-agents under their parent.

import { rpc } from "../api.js";
import { badge, empty, heading, link, nothingCaptured, pages, sameAs, select, time, toggle } from "../components.js";
import { debounce, h } from "../dom.js";
import { baseName, compact, day, dollars, duration, number, plural } from "../format.js";

const PAGE_ROWS = 50;

export async function render({ params, set, signal, onChange, refresh, harnesses }) {
  const asked = {
    project: params.project,
    source: params.source,
    query: params.title,
    topLevel: true,
    skipShort: params.short !== "show",
    skipAutomated: params.automated !== "show",
    count: true,
    limit: PAGE_ROWS,
  };
  const [first, everything, projects] = await Promise.all([
    rpc("session.list", asked, signal),
    rpc("session.list", { ...asked, skipShort: false, skipAutomated: false, limit: 1 }, signal),
    rpc("project.list", { limit: 100 }, signal),
  ]);
  const filtered = params.project || params.source || params.title;
  if (!first.total && !filtered) return [heading("Sessions"), await nothing(asked, set)];
  const fresh = h("div", { class: "fresh", role: "status" });
  const known = new Set(first.sessions.map((session) => session.id));
  let arrived = new Set();
  onChange(({ type, kind, id }) => {
    if (type === "reread" || (type === "change" && kind === "session" && !known.has(id))) arrived.add(id ?? "gap");
    if (arrived.size)
      fresh.replaceChildren(
        h("button", { type: "button", onclick: refresh }, `${plural(arrived.size, "new session")}: show`),
      );
  });
  const sources = params.source && !harnesses.includes(params.source) ? [...harnesses, params.source] : harnesses;
  const typed = debounce((value) => set({ title: value }, { replaced: true }));
  let lastDay = null;
  const row = (session) => {
    const label = day(session.createdAt);
    const isNewDay = label !== lastDay;
    lastDay = label;
    return h("li", {}, isNewDay && h("h2", { class: "day" }, label), sessionRow(session));
  };
  const next = async (cursor) => {
    const page = await rpc("session.list", { ...asked, count: false, cursor });
    return { rows: page.sessions, cursor: page.cursor };
  };
  return [
    heading("Sessions", h("span", { class: "muted" }, plural(first.total, "session"))),
    h(
      "div",
      { class: "toolbar" },
      h("input", {
        type: "search",
        "aria-label": "Title contains",
        placeholder: "Title contains …",
        value: params.title ?? "",
        oninput: (event) => typed(event.target.value),
      }),
      select(
        "in",
        params.project ?? "",
        [["", "all projects"], ...projects.map((one) => [one.id, `${one.name} (${number(one.sessions)})`])],
        (value) => set({ project: value }),
      ),
      select("of", params.source ?? "", [["", "all harnesses"], ...sources.map((name) => [name, name])], (value) =>
        set({ source: value }),
      ),
      toggle("One turn", params.short === "show", (checked) => set({ short: checked ? "show" : "" })),
      toggle("Automated", params.automated === "show", (checked) => set({ automated: checked ? "show" : "" })),
    ),
    hidden(first.total, everything, params),
    fresh,
    first.total
      ? pages({ rows: first.sessions, cursor: first.cursor }, next, row, { class: "rows sessions" })
      : empty("No session matches", "Change or remove the filters above."),
    sameAs("clankers-ctl sessions"),
  ];
}

function hidden(shown, everything, params) {
  const count = everything.total - shown;
  if (!count) return null;
  const kinds = [params.short !== "show" && "of one turn", params.automated !== "show" && "automated"].filter(Boolean);
  return h(
    "p",
    { class: "muted small" },
    `${plural(count, "session")} not listed: ${kinds.join(" or ")}.`,
    params.automated !== "show" &&
      " Automated are those that a script, an SDK or a schedule started, as the harness says; where it does not say, those whose first prompt three or more sessions share.",
  );
}

async function nothing(asked, set) {
  const all = await rpc("session.list", { topLevel: true, count: true, limit: 1 });
  if (all.total)
    return h(
      "div",
      { class: "empty" },
      h("h2", {}, `${plural(all.total, "session")} of one turn, or automated`),
      h("p", {}, "All captured sessions have one turn only, or were started by a script, an SDK or a schedule."),
      h("button", { type: "button", onclick: () => set({ short: "show", automated: "show" }) }, "Show them"),
    );
  return nothingCaptured();
}

/** Return a mark for a session that no person started, and how that is known. */
function automated({ automated, metadata }) {
  if (automated === "reported")
    return badge("automated", "", `The harness says that it was started by: ${metadata.entrypoint}`);
  return automated && badge("likely automated", "", "Three or more sessions have the same first prompt");
}

export function sessionRow(session) {
  const { counts = {} } = session;
  const tokens = (session.promptTokens ?? 0) + (session.completionTokens ?? 0);
  const length = session.endedAt ? duration(session.endedAt - session.createdAt) : null;
  const main = link(
    "session",
    { id: session.id },
    { class: "session-row", data: { row: "" } },
    h("span", { class: "title" }, session.title || session.userPrompt || session.id),
    h(
      "span",
      { class: "facts" },
      [
        time(session.createdAt),
        session.projectName ?? baseName(session.projectPath),
        session.source,
        plural(counts.messages ?? 0, "message"),
        plural(counts.tools ?? 0, "tool call"),
        length,
        tokens ? `${compact(tokens)} tokens` : null,
        session.cost ? dollars(session.cost) : null,
      ]
        .filter(Boolean)
        .map((part) => h("span", {}, part)),
    ),
    h(
      "span",
      { class: "badges" },
      automated(session),
      session.status === "active" && badge("active", "good"),
      counts.failedTools ? badge(plural(counts.failedTools, "failed call"), "bad") : null,
      counts.errors ? badge(plural(counts.errors, "error"), "bad") : null,
      counts.compactions ? badge(plural(counts.compactions, "compaction"), "violet") : null,
    ),
  );
  if (!session.subagents) return main;
  const tree = h(
    "details",
    { class: "tree", ontoggle: open },
    h("summary", {}, plural(session.subagents, "sub-agent")),
    h("ul", {}),
  );
  async function open() {
    const list = tree.querySelector("ul");
    if (!tree.open || list.children.length) return;
    const { sessions } = await rpc("session.list", { parentId: session.id, limit: 200 });
    list.append(...sessions.reverse().map((child) => h("li", {}, sessionRow(child))));
  }
  return [main, tree];
}
