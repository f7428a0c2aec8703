// One memory: its text, strength, history, origin, uses and neighbours.

import { change, rpc } from "../api.js";
import { attempt, badge, confirm, copyButton, facts, heading, link, notice, sameAs, time } from "../components.js";
import { strengthCurve } from "../charts.js";
import { wordDiff } from "../diff.js";
import { h, replace } from "../dom.js";
import { baseName, firstLine, moment, number, percent, plural, shortId } from "../format.js";

const ALL = { scopes: ["*"] };

export async function render(context) {
  const { params, signal } = context;
  const memory = await rpc("memory.get", { id: params.id, ...ALL }, signal);
  const [history, related, strength, ledger, graph] = await Promise.all([
    rpc("memory.history", { id: memory.id, ...ALL }, signal),
    rpc("memory.related", { id: memory.id, limit: 10, ...ALL }, signal),
    rpc("memory.strength", { id: memory.id, ...ALL }, signal),
    rpc("recall.ledger", { memoryId: memory.id, limit: 20 }, signal),
    rpc("graph.neighbors", { id: memory.id, hops: 1, limit: 30, ...ALL }, signal),
  ]);
  context.title(firstLine(memory.content, 60));
  const entities = graph.nodes.filter((node) => node.kind === "entity");
  return [
    heading(
      "Memory",
      memory.pinned ? badge("pinned", "good") : null,
      memory.state === "current" ? null : badge(memory.state, "warn"),
    ),
    content(context, memory),
    h(
      "div",
      { class: "columns" },
      h("section", { class: "card wide" }, h("h2", {}, "Strength"), strengthCurve(strength)),
      origin(memory),
      told(memory, ledger),
      changes(history, memory),
      entities.length
        ? h(
            "section",
            { class: "card" },
            h("h2", {}, "Mentions"),
            h(
              "ul",
              { class: "outline-list" },
              entities.map((node) =>
                h("li", {}, link("graph", { id: node.id }, {}, node.label, " ", badge(node.entity?.type ?? "entity"))),
              ),
            ),
          )
        : null,
      related.length
        ? h(
            "section",
            { class: "card" },
            h("h2", {}, "Related"),
            h(
              "ul",
              { class: "outline-list" },
              related.map((one) =>
                h(
                  "li",
                  {},
                  link(
                    "memory",
                    { id: one.memory.id },
                    {},
                    one.memory.content,
                    " ",
                    badge(`${one.via}: ${one.detail}`),
                  ),
                ),
              ),
            ),
          )
        : null,
    ),
    sameAs(`clankers-ctl memory show ${memory.id}`),
  ];
}

function content(context, memory) {
  const again = context.refresh;
  const card = h("section", { class: "card stack" });
  const button = (label, action, kind = "") => h("button", { type: "button", class: kind, onclick: action }, label);
  const apply = async (method, extra, done, undo) => {
    if (!(await attempt(() => change(method, { id: memory.id, ...ALL, ...extra })))) return;
    notice(done, undo && (async () => (await change(...undo), again())));
    again();
  };
  const forget = async () => {
    if (!(await confirm("Forget this memory?", memory.content, "Forget"))) return;
    await apply("memory.delete", {}, "Forgotten.", ["memory.restore", { id: memory.id, ...ALL }]);
  };
  const pin = () =>
    apply("memory.pin", { pinned: !memory.pinned }, memory.pinned ? "Unpinned." : "Pinned.", [
      "memory.pin",
      { id: memory.id, pinned: memory.pinned, ...ALL },
    ]);
  function show() {
    const gone = ["deleted", "archived", "superseded"].includes(memory.state);
    const restored = { deleted: ["memory.delete", { id: memory.id, ...ALL }] }[memory.state];
    replace(
      card,
      h("p", { class: "big" }, memory.content),
      memory.summary && h("p", { class: "muted" }, memory.summary),
      memory.supersededBy &&
        h("p", { class: "hint" }, "It was replaced by ", link("memory", { id: memory.supersededBy }, {}, "a newer memory"), "."),
      h(
        "div",
        { class: "toolbar" },
        button("Edit", edit),
        button(memory.pinned ? "Unpin" : "Pin", pin),
        gone && button("Restore", () => apply("memory.restore", {}, "Restored.", restored)),
        memory.state !== "deleted" && button("Forget", forget, "danger"),
        link("graph", { id: memory.id }, {}, "Show in the graph"),
        h("span", { class: "end" }, copyButton(memory.id, "Copy id")),
      ),
    );
  }
  function edit() {
    const box = h("textarea", { "aria-label": "Text of the memory", value: memory.content });
    const save = () =>
      box.value.trim() &&
      apply("memory.update", { content: box.value.trim(), reason: "edited in the view" }, "Saved.", [
        "memory.update",
        { id: memory.id, content: memory.content, reason: "undone in the view", ...ALL },
      ]);
    replace(card, box, h("div", { class: "actions" }, button("Cancel", show), button("Save", save, "primary")));
    box.focus();
  }
  show();
  return card;
}

function origin(memory) {
  const rows = [
    ["Category", memory.category],
    ["Kind", memory.sector],
    ["Scope", memory.projectName ? `project ${memory.projectName}` : memory.scope],
    ["Importance", percent(memory.importance)],
    ["Confidence", percent(memory.confidence)],
    ["Created", moment(memory.createdAt)],
    ["Valid", memory.validUntil ? `until ${moment(memory.validUntil)}` : "until something replaces it"],
    ["Tags", memory.tags.join(", ")],
  ].filter(([, value]) => value);
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Origin"),
    h(
      "table",
      {},
      h(
        "tbody",
        {},
        rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value))),
      ),
    ),
    memory.files.length
      ? h(
          "ul",
          { class: "outline-list" },
          memory.files.map((path) => h("li", {}, link("file", { path }, { class: "path" }, path))),
        )
      : null,
    memory.sourceSessionId
      ? h(
          "p",
          {},
          link("session", { id: memory.sourceSessionId, at: memory.sourceMessageId }, {}, "The message it came from"),
        )
      : h("p", { class: "muted small" }, "It did not come from a captured message."),
  );
}

function told(memory, ledger) {
  const mine = ledger.entries.map((entry) => [entry, entry.items.find((item) => item.id === memory.id)]);
  const used = mine.filter(([, item]) => item?.outcome === "used").length;
  const row = ([entry, item]) =>
    h(
      "tr",
      {},
      h("td", {}, time(entry.at)),
      h(
        "td",
        {},
        link(
          "session",
          { id: entry.sessionId, at: entry.promptId },
          {},
          entry.sessionTitle || shortId(entry.sessionId),
        ),
      ),
      h("td", {}, badge(item?.outcome ?? "no answer yet", { used: "good", contradicted: "bad" }[item?.outcome] ?? "")),
    );
  return h(
    "section",
    { class: "card" },
    h("h2", {}, `Told ${plural(ledger.total, "time")}`),
    ledger.total
      ? h(
          "p",
          { class: "muted small" },
          `Used in ${number(used)} of the ${number(mine.length)} shown. `,
          link("recall", { memory: memory.id }, {}, "Every injection"),
        )
      : h("p", { class: "muted" }, "No agent was told it yet."),
    ledger.total ? h("table", {}, h("tbody", {}, mine.map(row))) : null,
  );
}

function changes(history, memory) {
  const { versions } = history;
  const name = ({ id }) => (id === memory.id ? "this one" : link("memory", { id }, {}, shortId(id)));
  const byId = new Map(versions.map((version) => [version.id, version]));
  const replaced = (older, newer) =>
    h(
      "li",
      {},
      facts(badge("replaced"), time(newer.validFrom), h("span", {}, name(older), " → ", name(newer))),
      wordDiff(older.content, newer.content),
    );
  const chain = versions
    .filter((version) => byId.has(version.supersededBy))
    .map((version) => replaced(version, byId.get(version.supersededBy)));
  let after = memory.content;
  const entries = [...history.log].reverse().map((entry) => {
    const before = entry.memoryId === memory.id ? entry.before?.content : null;
    const diff = before ? wordDiff(before, after) : null;
    if (before) after = before;
    const which = entry.memoryId !== memory.id && name({ id: entry.memoryId });
    return h("li", {}, facts(badge(entry.action), which, time(entry.at), `by ${entry.by}`, entry.reason), diff);
  });
  return h(
    "section",
    { class: "card stack" },
    h("h2", {}, "History"),
    chain.length ? h("ol", { class: "stack" }, chain) : null,
    h("ol", { class: "stack" }, entries),
  );
}
