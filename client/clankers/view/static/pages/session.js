// One session: facts, tokens per turn, an outline of its prompts, and the transcript.

import { change, direct, rpc } from "../api.js";
import {
  attempt,
  badge,
  confirm,
  copyButton,
  facts,
  heading,
  link,
  loading,
  notice,
  sameAs,
  side,
  time,
} from "../components.js";
import { turnCosts, turnStrip } from "../charts.js";
import { debounce, h, marked, replace } from "../dom.js";
import { compact, dollars, duration, firstLine, moment, number, plural } from "../format.js";
import { Transcript } from "../transcript.js";
import { sessionRow } from "./sessions.js";

const MAX_TURNS = 10_000;
const OUTLINE_ROWS = 150;
const MAX_FOLDS = 500;

export async function render(context) {
  const { params, signal } = context;
  const session = await rpc("session.get", { id: params.id ?? (await sessionOf(context)) }, signal);
  const [outline, injections, learned, children] = await Promise.all([
    rpc("session.turns", { sessionId: session.id, limit: MAX_TURNS }, signal),
    rpc("session.injections", { sessionId: session.id }, signal),
    rpc("memory.list", { sessionId: session.id, scopes: ["*"], limit: 100 }, signal),
    session.subagents ? rpc("session.list", { parentId: session.id, limit: 100 }, signal) : { sessions: [] },
  ]);
  context.title(session.title || session.id);
  const view = {
    raw: params.raw === "1",
    query: params.q ?? "",
    folds: loadFolds(session.id),
    openAll: false,
    seen: lastSeen(session.id),
  };
  const transcript = new Transcript(session.id, outline.entries, injections, view, signal);
  const fresh = h("div", { class: "fresh floating", role: "status" });
  follow(context, session, transcript, outline, fresh);
  onKeys(context, transcript, outline, view);
  rememberPlace(session.id, signal);
  context.shown = () => {
    if (params.at)
      transcript.goTo(params.at).catch(() => notice("The entry of this link is not in the session any more."));
  };
  return [
    header(context, session, outline, injections),
    children.sessions.length
      ? h(
          "details",
          { class: "tree" },
          h("summary", {}, plural(children.sessions.length, "sub-agent")),
          h(
            "ul",
            {},
            children.sessions.map((child) => h("li", {}, sessionRow(child))),
          ),
        )
      : null,
    learned.memories.length
      ? h(
          "details",
          { class: "tree" },
          h("summary", {}, `${plural(learned.memories.length, "memory", "memories")} from this session`),
          h(
            "ul",
            { class: "outline-list" },
            learned.memories.map((memory) => h("li", {}, link("memory", { id: memory.id }, {}, memory.content))),
          ),
        )
      : null,
    turnStrip(outline.turns, session.cost, (turn) => transcript.goToPosition(turn.position)),
    toolbar(context, session, transcript, view),
    h(
      "div",
      { class: "session-layout" },
      outlinePanel(session, outline, transcript, view, signal),
      h(
        "div",
        {},
        outline.entries ? transcript.element : h("p", { class: "muted" }, "Nothing was captured in this session yet."),
      ),
    ),
    fresh,
    sameAs(`clankers-ctl session ${session.id}`),
  ];
}

/** Return the session of the entry that a link names, and complete the address. */
async function sessionOf({ params, set, signal }) {
  const { message, tool } = await rpc("session.entry", { id: params.at }, signal);
  const { sessionId } = message ?? tool;
  set({ id: sessionId }, { quiet: true });
  return sessionId;
}

function header(context, session, outline, injections) {
  const { counts = {} } = session;
  const parent = session.metadata?.parentId;
  const told = injections.reduce((sum, one) => sum + one.characters, 0);
  const resume = resumeCommand(session);
  return h(
    "div",
    { class: "session-head" },
    heading(
      session.title || firstLine(session.userPrompt, 80) || session.id,
      session.status === "active" ? badge("active", "good") : null,
    ),
    facts(
      session.projectName &&
        link("sessions", { project: session.projectId }, { title: session.projectPath }, session.projectName),
      session.source,
      session.model,
      h("span", { title: moment(session.createdAt) }, time(session.createdAt)),
      session.endedAt ? duration(session.endedAt - session.createdAt) : null,
      plural(counts.messages ?? 0, "message"),
      plural(counts.tools ?? 0, "tool call"),
      counts.failedTools ? `${number(counts.failedTools)} failed` : null,
      counts.compactions ? plural(counts.compactions, "compaction") : null,
      `cost ${dollars(session.cost)}`,
    ),
    facts(
      parent && link("session", { id: parent }, {}, "Part of another session"),
      injections.length
        ? link(
            "recall",
            { session: session.id },
            {},
            `Told ${plural(injections.length, "time")}, about ${compact(Math.round(told / 4))} tokens`,
          )
        : "Told nothing by clankers",
    ),
    session.summary && h("p", { class: "summary" }, session.summary),
    resume && h("p", { class: "command" }, h("code", {}, resume), copyButton(resume)),
  );
}

/** Return the command that continues a session, for harnesses that have one. */
function resumeCommand(session) {
  const commands = {
    "claude-code": `claude --resume ${session.id}`,
    codex: `codex resume ${session.id}`,
    opencode: `opencode --session ${session.id}`,
  };
  const command = /^[\w-]+$/.test(session.id) ? commands[session.source] : null;
  if (!command) return null;
  return session.projectPath ? `cd '${session.projectPath.replaceAll("'", "'\\''")}' && ${command}` : command;
}

function toolbar(context, session, transcript, view) {
  const raw = h(
    "button",
    {
      type: "button",
      "aria-pressed": String(view.raw),
      onclick: () => context.set({ raw: view.raw ? "" : "1" }, { replaced: true }),
    },
    view.raw ? "Show formatted" : "Show raw",
  );
  const formats = ["markdown", "html", "json"];
  return h(
    "div",
    { class: "toolbar" },
    h("button", { type: "button", onclick: () => toggleAll(transcript, view) }, "Open or close all calls"),
    raw,
    h(
      "span",
      { class: "control" },
      "Export",
      formats.map((name) =>
        h("a", { href: direct("/api/export", { id: session.id, format: name }), download: "" }, name),
      ),
    ),
    h("button", { type: "button", class: "danger end", onclick: () => remove(context, session) }, "Delete session"),
  );
}

function toggleAll(transcript, view) {
  view.openAll = !view.openAll;
  for (const details of transcript.element.querySelectorAll("details.tool")) details.open = view.openAll;
}

async function remove(context, session) {
  const { counts } = session;
  const text = `This deletes the session with ${plural(counts.messages, "message")} and ${plural(counts.tools, "tool call")} for good. It cannot be undone.`;
  if (!(await confirm("Delete this session?", text, "Delete"))) return;
  if (await attempt(() => change("session.delete", { id: session.id }))) {
    notice("The session was deleted.");
    context.go("sessions", {});
  }
}

function outlinePanel(session, outline, transcript, view, signal) {
  const list = h("ol", { class: "outline" });
  const most = Math.max(1, ...outline.turns.map((turn) => turn.contextTokens ?? 0));
  const costs = turnCosts(outline.turns, session.cost);
  let shown = 0;
  const more = h("button", { type: "button", class: "quiet", onclick: add }, "More prompts");
  function add() {
    for (const turn of outline.turns.slice(shown, shown + OUTLINE_ROWS))
      list.append(outlineRow(turn, most, costs, transcript));
    shown += OUTLINE_ROWS;
    if (shown >= outline.turns.length) more.remove();
  }
  const hits = h("div", { role: "status" });
  const find = debounce((query) => findInSession(session, query, hits, transcript, view, signal), 250);
  const panel = h(
    "nav",
    { class: "outline-panel", "aria-label": "Prompts of this session" },
    h("input", {
      type: "search",
      "aria-label": "Find in this session",
      placeholder: "Find in this session",
      oninput: (event) => find(event.target.value.trim()),
    }),
    hits,
    side(plural(outline.turns.filter((turn) => turn.id).length, "prompt"), list, more),
  );
  add();
  return panel;
}

function outlineRow(turn, most, costs, transcript) {
  const isExpensive = turn === costs.expensive;
  const cost = costs.of(turn);
  const share = turn.contextTokens ? Math.round((100 * turn.contextTokens) / most) : 0;
  return h(
    "li",
    {},
    h(
      "button",
      { type: "button", title: turn.text, onclick: () => transcript.goToPosition(turn.position) },
      h("span", { class: "prompt" }, turn.id ? firstLine(turn.text, 90) || "(no text)" : "Before the first prompt"),
      h(
        "span",
        { class: "facts" },
        [
          turn.tools ? plural(turn.tools, "call") : null,
          turn.contextTokens ? h("span", { title: "Tokens of context" }, compact(turn.contextTokens)) : null,
          cost ? h("span", { title: "Its share of the session's cost" }, `~${dollars(cost)}`) : null,
          isExpensive ? badge("most expensive", "warn") : null,
        ]
          .filter(Boolean)
          .map((part) => h("span", {}, part)),
        turn.failedTools || turn.errors
          ? h("span", { class: "dot bad", title: `${turn.failedTools} failed calls, ${turn.errors} errors` })
          : null,
        turn.compactions ? h("span", { class: "dot violet", title: "compacted" }) : null,
      ),
      h(
        "span",
        { class: "bar-track thin" },
        h("span", { class: `bar-fill ${isExpensive ? "expensive" : ""}`, style: { width: `${share}%` } }),
      ),
    ),
  );
}

async function findInSession(session, query, hits, transcript, view, signal) {
  if (!query) return replace(hits);
  replace(hits, loading("Searching"));
  try {
    const [found, calls] = await Promise.all([
      rpc("search", { query, sessionId: session.id, sources: ["sessions"], recorded: false, limit: 20 }, signal),
      rpc("tool.search", { query, sessionId: session.id, limit: 20 }, signal),
    ]);
    const close = found.weak && calls.hits.length ? [] : found.hits; // rather the words themselves than what is near
    const listed = new Map(close.map((hit) => [hit.ref.toolId ?? hit.ref.messageId, hit.snippet]));
    for (const call of calls.hits) listed.set(call.toolId, call.snippet); // its own words, not only its command
    listed.delete(undefined); // the title
    const row = ([id, snippet]) =>
      h(
        "li",
        {},
        h(
          "button",
          { type: "button", onclick: () => ((view.query = query), transcript.goTo(id)) },
          h("span", { class: "snippet" }, marked(snippet)),
        ),
      );
    replace(
      hits,
      listed.size
        ? h("ol", { class: "outline found" }, [...listed].map(row))
        : h("p", { class: "muted small" }, "Nothing was found in this session."),
    );
  } catch (error) {
    if (!signal.aborted) replace(hits, h("p", { class: "hint warn" }, error.message));
  }
}

/** Follow a session that goes on. The scroll position stays; a button says how much is new. */
function follow(context, session, transcript, outline, fresh) {
  let known = outline.entries;
  const update = debounce(async () => {
    const now = await rpc("session.turns", { sessionId: session.id, limit: 1 }, context.signal);
    await transcript.grow(now.entries);
    const atEnd = innerHeight + scrollY > document.body.scrollHeight - 200;
    if (atEnd) known = now.entries;
    const count = now.entries - known;
    replace(
      fresh,
      count > 0 &&
        h(
          "button",
          {
            type: "button",
            onclick: () => ((known = transcript.total), replace(fresh), transcript.goToPosition(known - 1)),
          },
          `${number(count)} new below`,
        ),
    );
  }, 400);
  context.onChange((event) => {
    if (event.type === "reread" || event.facts?.sessionId === session.id || event.id === session.id) update();
  });
}

function onKeys(context, transcript, outline, view) {
  const current = () => {
    const entry = [...document.querySelectorAll(".entry")].find((one) => one.getBoundingClientRect().bottom > 120);
    return Number(entry?.dataset.at ?? 0);
  };
  const jump = (turn) => turn && transcript.goToPosition(turn.position);
  let lastError = null;
  const nextError = async () => {
    const isShown = lastError?.isConnected && Math.abs(lastError.getBoundingClientRect().top) < innerHeight;
    const after = isShown ? Number(lastError.dataset.at) : current() - 1;
    for (const [index, turn] of outline.turns.entries()) {
      const next = outline.turns[index + 1];
      if (!(turn.failedTools || turn.errors) || (next && next.at <= after)) continue;
      const found = await transcript.goToFailure(turn.position, next?.position ?? outline.entries, after);
      if (found) return (lastError = found);
    }
  };
  const onKey = ({ detail }) => {
    const at = current();
    if (detail === "n") jump(outline.turns.find((turn) => turn.at > at));
    if (detail === "p") jump(outline.turns.findLast((turn) => turn.at < at));
    if (detail === "e") nextError();
    if (detail === "o") toggleAll(transcript, view);
  };
  document.getElementById("main").addEventListener("view-key", onKey, { signal: context.signal });
}

function loadFolds(sessionId) {
  const key = `folds:${sessionId}`;
  const folds = new Map(JSON.parse(localStorage.getItem(key) ?? "[]"));
  const save = debounce(
    () => localStorage.setItem(key, JSON.stringify([...folds].filter(([, open]) => open).slice(-MAX_FOLDS))),
    300,
  );
  return { get: (id) => folds.get(id), set: (id, open) => (folds.set(id, open), save()) };
}

const lastSeen = (sessionId) => localStorage.getItem(`seen:${sessionId}`);

/** Remember the last entry that was on the screen, for the line at the next visit. */
function rememberPlace(sessionId, signal) {
  const save = debounce(() => {
    const visible = [...document.querySelectorAll(".entry[data-id]")].filter(
      (one) => one.getBoundingClientRect().top < innerHeight - 40,
    );
    if (visible.length) localStorage.setItem(`seen:${sessionId}`, visible.at(-1).dataset.id);
  }, 500);
  addEventListener("scroll", save, { signal, passive: true });
}
