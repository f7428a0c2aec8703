// Recall: what agents were told, what it was chosen from, what became of it, and what would be told now.

import { rpc } from "../api.js";
import { badge, empty, errorBox, facts, heading, link, loading, pages, sameAs, select, time } from "../components.js";
import { h, replace } from "../dom.js";
import { fold } from "../entries.js";
import { baseName, compact, firstLine, number, percent, plural, shortId } from "../format.js";

const PAGE_ENTRIES = 10;
const PAGE_RECENT = 20;
const PERIODS = [
  ["", "the last 30 days"],
  ["7", "the last 7 days"],
  ["365", "the last year"],
  ["all", "all time"],
];
const OUTCOMES = { used: "good", contradicted: "bad", ignored: "" };
const CHARACTERS_PER_TOKEN = 4;
const NEAR_MISS = 0.7; // share of the strength that was needed

const TABS = [
  ["", "Injections"],
  ["searches", "Searches"],
  ["silent", "Not told"],
  ["memories", "By item"],
  ["sessions", "By session"],
];

export async function render({ params, set, signal, project }) {
  const scope = { sessionId: params.session, memoryId: params.memory };
  const [session, projects] = await Promise.all([
    params.session ? rpc("session.get", { id: params.session }, signal) : null,
    rpc("project.list", { limit: 100 }, signal),
  ]);
  const shown = params.show ?? "";
  const [count, content] =
    shown === "searches" || shown === "silent"
      ? await recentRecall(shown, params.session, signal)
      : shown === "memories" || shown === "sessions"
        ? await totals(shown, scope, params, set, signal)
        : await injections(scope, params, session, signal);
  const tabs = TABS.filter(([name]) => !params.memory || !["searches", "silent"].includes(name));
  return [
    heading("Recall", h("span", { class: "muted" }, count)),
    h(
      "nav",
      { class: "tabs", "aria-label": "Views of recall" },
      tabs.map(([name, title]) =>
        link(
          "recall",
          { ...params, show: name },
          name === shown ? { "aria-current": "page", data: { tab: name } } : { data: { tab: name } },
          title,
        ),
      ),
    ),
    params.memory || params.session
      ? h(
          "p",
          { class: "muted" },
          params.memory ? "Of one memory. " : `Of “${session.title || shortId(session.id)}”. `,
          link("recall", { show: shown }, {}, "Show all"),
        )
      : null,
    shown ? null : tryPrompt(params, set, project ?? projects[0]?.id, projects, signal),
    content,
    sameAs("clankers-ctl recall “PROMPT”"),
  ];
}

async function injections(scope, params, session, signal) {
  const asked = { ...scope, limit: PAGE_ENTRIES };
  const ledger = await rpc("recall.ledger", asked, signal);
  const next = async (cursor) => {
    const page = await rpc("recall.ledger", { ...asked, cursor });
    return { rows: page.entries, cursor: page.cursor };
  };
  const list = ledger.total
    ? pages({ rows: ledger.entries, cursor: ledger.cursor }, next, (entry) => h("li", {}, entryCard(entry)), {
        class: "cards",
      })
    : nothing(params);
  return [plural(ledger.total, "injection"), [session ? await untold(session, ledger, signal) : null, list]];
}

/** Return the searches of agents, or the prompts with which nothing was told. */
async function recentRecall(shown, session, signal) {
  const ofSearches = shown === "searches";
  const read = async (before) => {
    const recent = await rpc("recall.recent", { sessionId: session, beforeId: before, limit: PAGE_RECENT }, signal);
    const rows = recent[shown];
    return { recent, rows, cursor: rows.length === PAGE_RECENT ? rows.at(-1).id : null };
  };
  const first = await read(null);
  const { since, searchCount, silentCount } = first.recent;
  const none = ofSearches
    ? empty(
        "No agent has searched yet",
        "Searches that agents make through MCP, and programs through RPC, appear here. What you look up yourself does not.",
      )
    : empty(
        "Nothing known was left out",
        "A prompt appears here if something stored matched it, but was not close enough to be told, or if the search failed.",
      );
  const card = ofSearches ? searchCard : silentCard;
  const list = () => pages(first, read, (one) => h("li", {}, card(one)), { class: "cards" });
  const kept = h("p", { class: "muted small" }, "The last 2,000 of 90 days are kept. Oldest: ", time(since));
  return [
    ofSearches ? plural(searchCount, "search", "searches") : plural(silentCount, "prompt"),
    first.rows.length ? [kept, list()] : none,
  ];
}

const into = ({ sessionId, sessionTitle }, at) =>
  sessionId && link("session", { id: sessionId, at }, {}, sessionTitle || shortId(sessionId));

function searchCard(search) {
  const cut = search.hasMore ? `cut off after ${number(search.limit)}` : "no more followed";
  const row = (hit) =>
    h(
      "tr",
      {},
      h("td", { class: "num" }, hit.score.toFixed(2)),
      h("td", {}, hitLink(hit), hit.duplicates ? ` and ${number(hit.duplicates)} like it` : ""),
      h("td", { class: "optional" }, badge(hit.source)),
      h(
        "td",
        { class: "small" },
        Object.entries(hit.components)
          .map(([name, value]) => `${name} ${value.toFixed(2)}`)
          .join(" · "),
      ),
    );
  const heads = ["Score", "Hit", "Source", "Signals"];
  return h(
    "article",
    { class: "card recall-entry" },
    h(
      "header",
      {},
      h("h2", { class: "prompt" }, firstLine(search.query, 220)),
      facts(
        time(search.at),
        into(search, search.toolId),
        search.project && baseName(search.project),
        plural(search.hits.length, "hit"),
        cut,
        search.minScore ? `none below ${search.minScore}` : null,
        `${search.mode}, ${Math.round(search.tookMs)} ms`,
        search.weak && badge("nothing close", "warn"),
      ),
      search.degraded && h("p", { class: "hint warn" }, `Incomplete: ${search.degraded}.`),
    ),
    search.hits.length
      ? h(
          "section",
          {},
          fold("What was found, and why", () =>
            h(
              "div",
              { class: "scroll", tabindex: 0 },
              h(
                "table",
                { class: "candidates" },
                h(
                  "thead",
                  {},
                  h(
                    "tr",
                    {},
                    heads.map((name) => h("th", { scope: "col", class: name === "Source" ? "optional" : null }, name)),
                  ),
                ),
                h("tbody", {}, search.hits.map(row)),
              ),
            ),
          ),
        )
      : null,
  );
}

function hitLink(hit) {
  if (hit.text === null) return "It does not exist any more.";
  const words = firstLine(hit.text, 160);
  if (hit.memoryId) return link("memory", { id: hit.memoryId }, {}, words);
  if (hit.sessionId) return link("session", { id: hit.sessionId, at: hit.entryId }, {}, words);
  return hit.documentId ? link("document", { id: hit.documentId }, {}, words) : words;
}

const closestFirst = (list) => [...list].sort((a, b) => b.strength / b.needed - a.strength / a.needed);

function silentCard(one) {
  const [best] = closestFirst(one.considered);
  return h(
    "article",
    { class: "card recall-entry" },
    h(
      "header",
      {},
      h("h2", { class: "prompt" }, firstLine(one.prompt, 220) || "A prompt that is not stored any more"),
      facts(
        time(one.at),
        into(one, one.promptId),
        one.reason,
        best && `the best had ${against(best.strength, best.needed)}`,
        best && best.strength >= NEAR_MISS * best.needed ? badge("near miss", "warn") : null,
      ),
    ),
    best &&
      h(
        "section",
        {},
        fold(`${plural(one.considered.length, "candidate")}, none told`, () =>
          candidates(closestFirst(one.considered), new Set()),
        ),
      ),
  );
}

/** Return what became of everything that was told: for each item, or for each session. */
async function totals(shown, scope, params, set, signal) {
  const days = params.days === "all" ? null : Number(params.days || 30);
  const found = await rpc("recall.totals", { ...scope, since: days && Date.now() - days * 86_400_000 }, signal);
  const ofItems = shown === "memories";
  const rows = ofItems ? found.items : found.sessions;
  const all = ofItems ? found.itemCount : found.sessionCount;
  const listed = `${rows.length < all ? `The ${number(rows.length)} most told of ` : ""}${plural(all, ofItems ? "item" : "session")}`;
  const note = `${listed}, in ${plural(found.injections, "injection")}. Used is an estimate from words.`;
  const row = (one) =>
    h(
      "tr",
      {},
      h("td", {}, ofItems ? badge(one.kind) : null, " ", totalLink(one, ofItems)),
      [one.told, one.used, one.ignored, one.contradicted, one.open].map((value, index) =>
        h("td", { class: `num ${index === 3 && value ? "bad-text" : ""}` }, number(value)),
      ),
      h("td", {}, outcomeBar(one)),
      ofItems ? null : h("td", { class: "num optional" }, compact(Math.round(one.characters / CHARACTERS_PER_TOKEN))),
    );
  const heads = [ofItems ? "Item" : "Session", "Told", "Used", "Ignored", "Contradicted", "No answer", "Share used"];
  if (!ofItems) heads.push("Tokens");
  const table = h(
    "div",
    { class: "card scroll", tabindex: 0 },
    h(
      "table",
      { class: "ledger" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((name) => h("th", { scope: "col" }, name)),
        ),
      ),
      h("tbody", {}, rows.map(row)),
    ),
  );
  const period = h(
    "div",
    { class: "toolbar" },
    select("in", params.days ?? "", PERIODS, (value) => set({ days: value })),
    h("span", { class: "muted small" }, note),
  );
  if (rows.length) return [plural(found.injections, "injection"), [period, table]];
  const ever = await rpc("recall.ledger", { ...scope, limit: 1 }, signal);
  const none = empty("Nothing was told in this time", "Choose a longer time, or look at the injections.");
  return [plural(ever.total, "injection"), ever.total ? [period, none] : nothing(scope)];
}

function totalLink(one, ofItems) {
  const words = firstLine(one.text, 140) || shortId(one.id);
  if (!ofItems) return link("recall", { session: one.id }, {}, words);
  if (one.kind === "memory") return link("recall", { memory: one.id }, {}, words);
  return one.kind === "session" ? link("session", { id: one.id }, {}, words) : words;
}

function outcomeBar(one) {
  const share = one.told - one.open ? one.used / (one.told - one.open) : 0;
  return h(
    "span",
    { class: "bar-track", role: "img", "aria-label": `${percent(share)} used` },
    h("span", { class: "bar-fill", style: { width: `${Math.round(share * 100)}%` } }),
  );
}

const nothing = (params) =>
  params.session || params.memory || params.sessionId || params.memoryId
    ? empty("Nothing was told here", "No injection matches. Recall is silent unless something is close to the prompt.")
    : empty(
        "No agent was told anything yet",
        "When a session starts or a prompt is sent, recall looks for what is known and injects it. Each injection is listed here with what it was chosen from.",
        "clankers-ctl plugin status",
        'clankers-ctl recall "why is the test flaky?"',
      );

/** Ask what an agent would be told for a prompt now. Nothing is recorded. */
function tryPrompt(params, set, project, projects, signal) {
  const result = h("div", { role: "status" });
  const box = h("input", {
    type: "search",
    "aria-label": "Prompt to try",
    placeholder: "What would an agent be told for this prompt?",
    value: params.try ?? "",
  });
  const where = params.project ?? project ?? null;
  async function run() {
    set({ try: box.value.trim() }, { quiet: true });
    if (!box.value.trim()) return replace(result);
    replace(result, loading("Asking recall"));
    try {
      const recall = await rpc(
        "recall.preview",
        { kind: "prompt", query: box.value.trim(), project: where, sessionId: params.session },
        signal,
      );
      replace(result, preview(recall));
    } catch (error) {
      replace(result, errorBox(error, run));
    }
  }
  if (params.try) run();
  const options = projects.map((one) => [one.id, one.name]);
  const choose = select("in", where, options, (value) => set({ project: value, try: box.value.trim() }));
  const form = h(
    "form",
    { class: "try", onsubmit: (event) => (event.preventDefault(), run()) },
    box,
    options.length ? choose : null,
    h("button", {}, "Try"),
  );
  return h("section", { class: "card try-card" }, form, result);
}

function preview(recall) {
  const summary = recall.text
    ? `It would be told ${plural(recall.ids.length, "item")}, about ${compact(Math.round(recall.characters / CHARACTERS_PER_TOKEN))} tokens.`
    : `It would be told nothing: ${recall.reason}.`;
  return h(
    "div",
    { class: "stack" },
    h("p", {}, summary),
    recall.text && recall.degraded && h("p", { class: "hint warn" }, `Incomplete: ${recall.degraded}.`),
    candidates(recall.considered),
    recall.text && fold("The block", () => h("pre", { class: "plain" }, recall.text), true),
  );
}

/** List prompts of a session with which nothing was told. */
async function untold(session, ledger, signal) {
  const { turns } = await rpc("session.turns", { sessionId: session.id, limit: 200 }, signal);
  const told = new Set(ledger.entries.map((entry) => entry.promptId));
  const silent = turns.filter((turn) => turn.id && !told.has(turn.id));
  if (!silent.length || ledger.cursor) return null;
  const row = (turn) => h("li", {}, link("recall", { session: session.id, try: turn.text }, {}, firstLine(turn.text)));
  return fold(`${plural(silent.length, "prompt")} with which nothing was told: open one to see what is known now`, () =>
    h("ul", { class: "outline-list" }, silent.map(row)),
  );
}

function entryCard(entry) {
  return h(
    "article",
    { class: "card recall-entry" },
    h(
      "header",
      {},
      h(
        "h2",
        { class: "prompt" },
        entry.kind === "start"
          ? "Start of the session"
          : firstLine(entry.prompt, 220) || "A prompt that is not stored any more",
      ),
      facts(
        time(entry.at),
        link(
          "session",
          { id: entry.sessionId, at: entry.promptId },
          {},
          entry.sessionTitle || shortId(entry.sessionId),
        ),
        entry.trigger,
        plural(entry.items.length, "item"),
        `about ${compact(Math.round(entry.characters / CHARACTERS_PER_TOKEN))} tokens`,
      ),
    ),
    h("section", {}, h("ol", { class: "told" }, entry.items.map(item))),
    entry.considered &&
      h(
        "section",
        {},
        fold(considered(entry.considered), () =>
          candidates(entry.considered, new Set(entry.items.map((one) => one.id))),
        ),
      ),
    h(
      "section",
      {},
      fold("The block as the agent saw it", () => h("pre", { class: "plain" }, entry.text)),
    ),
  );
}

function considered(list) {
  const dropped = list.filter((one) => !one.chosen).length;
  return `${plural(list.length, "candidate")}: ${number(list.length - dropped)} chosen, ${number(dropped)} dropped`;
}

function item(one) {
  const pages = {
    memory: ["memory", { id: one.id }],
    session: ["session", { id: one.id }],
    passage: ["session", { at: one.id }],
  };
  const target = pages[one.kind];
  const words = one.text ? firstLine(one.text, 260) : "It does not exist any more.";
  return h(
    "li",
    {},
    h(
      "span",
      {},
      badge(one.outcome ?? "no answer yet", OUTCOMES[one.outcome] ?? ""),
      " ",
      one.timesTold > 1 &&
        h(
          "span",
          { class: "muted small", title: `It was told ${plural(one.timesTold, "time")} up to now` },
          `${number(one.timesTold)}×`,
        ),
    ),
    h("p", {}, badge(one.kind), " ", target ? link(...target, {}, words) : words),
  );
}

const named = (one) => firstLine(one.text, 90) || shortId(one.id);

/** Return two figures with as many digits as tell them apart. */
const against = (strength, needed) => {
  const digits = strength !== needed && strength.toFixed(2) === needed.toFixed(2) ? 3 : 2;
  return `${strength.toFixed(digits)} of ${needed.toFixed(digits)}`;
};

/** Return the candidates with their figures; the line in each bar is what was needed to be told. */
function candidates(list, told = null) {
  if (!list?.length) return h("p", { class: "muted" }, "No memory or passage matched the prompt.");
  const width = (value) => `${Math.round(Math.min(1, value) * 100)}%`;
  const row = (one) =>
    h(
      "tr",
      { class: one.chosen ? "" : "dropped" },
      h(
        "td",
        {},
        badge(one.kind),
        " ",
        one.kind === "memory" ? link("memory", { id: one.id }, {}, named(one)) : named(one),
        one.duplicates ? ` and ${number(one.duplicates)} like it` : "",
      ),
      h(
        "td",
        {},
        h(
          "div",
          { class: "gate", role: "img", "aria-label": `Strength ${one.strength} of ${one.needed} needed` },
          h("span", { class: `bar-fill ${one.chosen ? "" : "low"}`, style: { width: width(one.strength) } }),
          h("span", { class: "needed", style: { left: width(one.needed) } }),
        ),
      ),
      h("td", { class: "num" }, against(one.strength, one.needed)),
      h("td", { class: "num optional" }, percent(one.coverage)),
      h("td", { class: "num optional" }, one.cosine === null || one.cosine === undefined ? "–" : one.cosine.toFixed(2)),
      h(
        "td",
        {},
        !one.chosen
          ? one.why
          : told && !told.has(one.id)
            ? "close enough, but left out: told before, or no room"
            : badge("told", "good"),
      ),
    );
  return h(
    "div",
    { class: "scroll", tabindex: 0 },
    h(
      "table",
      { class: "candidates" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Candidate"),
          h("th", { scope: "col" }, "Strength"),
          h("th", { scope: "col", class: "num" }, "Needed"),
          h("th", { scope: "col", class: "num optional" }, "Words"),
          h("th", { scope: "col", class: "num optional" }, "Cosine"),
          h("th", { scope: "col" }, "Outcome"),
        ),
      ),
      h("tbody", {}, list.map(row)),
    ),
  );
}
