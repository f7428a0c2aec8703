// Recall: what agents were told, what it was chosen from, what became of it, and what would be told now.

import { rpc } from "../api.js";
import { badge, empty, errorBox, facts, heading, link, loading, pages, sameAs, select, time } from "../components.js";
import { h, replace } from "../dom.js";
import { fold } from "../entries.js";
import { compact, firstLine, number, percent, plural, shortId } from "../format.js";

const PAGE_ENTRIES = 10;
const OUTCOMES = { used: "good", contradicted: "bad", ignored: "" };
const CHARACTERS_PER_TOKEN = 4;

export async function render({ params, set, signal, project }) {
  const asked = { sessionId: params.session, memoryId: params.memory, limit: PAGE_ENTRIES };
  const [ledger, session, projects] = await Promise.all([
    rpc("recall.ledger", asked, signal),
    params.session ? rpc("session.get", { id: params.session }, signal) : null,
    rpc("project.list", { limit: 100 }, signal),
  ]);
  const next = async (cursor) => {
    const page = await rpc("recall.ledger", { ...asked, cursor });
    return { rows: page.entries, cursor: page.cursor };
  };
  const scope = params.memory
    ? "Injections of one memory"
    : session
      ? `Injections into “${session.title || shortId(session.id)}”`
      : "Every injection, newest first";
  return [
    heading("Recall", h("span", { class: "muted" }, plural(ledger.total, "injection"))),
    h(
      "p",
      { class: "muted" },
      `${scope}. `,
      params.memory || params.session ? link("recall", {}, {}, "Show all") : null,
    ),
    tryPrompt(params, set, project ?? projects[0]?.id, projects, signal),
    session ? await untold(session, ledger, signal) : null,
    ledger.total
      ? pages({ rows: ledger.entries, cursor: ledger.cursor }, next, (entry) => h("li", {}, entryCard(entry)), {
          class: "cards",
        })
      : nothing(params),
    sameAs("clankers-ctl recall “PROMPT”"),
  ];
}

const nothing = (params) =>
  params.session || params.memory
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
  const pages = { memory: ["memory", { id: one.id }], session: ["session", { id: one.id }] };
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
        one.kind === "memory" ? link("memory", { id: one.id }, {}, shortId(one.id)) : h("code", {}, shortId(one.id)),
        " ",
        badge(one.kind),
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
      h("td", { class: "num" }, `${one.strength.toFixed(2)} of ${one.needed.toFixed(2)}`),
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
