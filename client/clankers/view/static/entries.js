// Entries of a transcript as elements. A folded block is not built before it is opened.

import { rpc } from "./api.js";
import { badge, errorBox, link, loading, unknownCard } from "./components.js";
import { lineDiff } from "./diff.js";
import { h, replace } from "./dom.js";
import { baseName, clock, compact, duration, firstLine, moment, number, shortId, visible } from "./format.js";
import { markdown } from "./markdown.js";

const MAX_PLAIN_LINES = 400;

/** Return one entry. `view` has the query to mark, whether texts are raw, and which blocks are open. */
export function entryElement(entry, view) {
  const make = { message, tool, error, compaction }[entry.kind];
  const record = entry[entry.kind];
  const element = make && record ? make(record, entry, view) : unknownCard(entry);
  element.id = `entry-${record?.id ?? ""}`;
  element.dataset.id = record?.id ?? "";
  element.dataset.at = entry.at;
  element.classList.add("entry"); // a record of an unknown kind, too
  return element;
}

function head(entry, id, ...parts) {
  return h(
    "header",
    {},
    ...parts,
    h("a", { class: "anchor", href: linkTo(id), title: `${moment(entry.at)}: link to this entry` }, clock(entry.at)),
  );
}

const linkTo = (id) => {
  const params = new URLSearchParams(location.search);
  return `/session?${new URLSearchParams({ id: params.get("id"), at: id })}`;
};

function message(record, entry, view) {
  const role = record.role ?? "message";
  const tokens = record.promptTokens || record.completionTokens;
  return h(
    "article",
    { class: `entry message ${role === "user" || role === "assistant" ? role : "other"}` },
    head(
      entry,
      record.id,
      h("h3", {}, role === "user" ? "You" : role === "assistant" ? "Agent" : role),
      record.model && role === "assistant" && h("span", { class: "muted" }, record.model),
      tokens
        ? h(
            "span",
            {
              class: "muted",
              title: `${number(record.promptTokens)} prompt tokens, ${number(record.completionTokens)} completion tokens`,
            },
            `${compact(record.promptTokens)} → ${compact(record.completionTokens)} tokens`,
          )
        : null,
      record.durationMs && h("span", { class: "muted" }, duration(record.durationMs)),
    ),
    text(record.textContent ?? "", "textContent", record, entry, view),
  );
}

/** Return a text, rendered or raw, with a button for the rest if it was cut. */
function text(content, name, record, entry, view) {
  const show = (value) => (view.raw ? h("pre", { class: "plain" }, value) : markdown(value));
  const body = h("div", { class: "body" }, content.trim() ? show(content) : h("p", { class: "muted" }, "No text."));
  const full = entry.cut?.[name];
  if (full)
    body.append(
      rest(full, async () => replace(body, show((await rpc("session.entry", { id: record.id }))[entry.kind][name]))),
    );
  if (view.query) markWords(body, view.query);
  return body;
}

function rest(length, load) {
  const button = h("button", { type: "button", class: "rest", onclick: open }, `Show all ${number(length)} characters`);
  async function open() {
    button.disabled = true;
    try {
      await load();
    } catch (error) {
      button.replaceWith(errorBox(error, load));
    }
  }
  return button;
}

const PATHS = ["file_path", "filePath", "path", "absolute_path"];

/** Return the one thing that tells a call from others: its command, file, pattern or query. */
function subject(record, input) {
  if (record.filePath) return record.filePath;
  if (!input || typeof input !== "object") return firstLine(record.toolInput ?? "");
  const name = [...PATHS, "command", "cmd", "pattern", "query", "url", "description", "prompt"].find(
    (key) => typeof input[key] === "string",
  );
  return name ? firstLine(input[name]) : firstLine(record.toolInput ?? "");
}

/** Return the input of a call as data. Its strings are cleaned as the server cleans texts: JSON may have hidden escapes. */
export function parseInput(record) {
  try {
    return JSON.parse(record.toolInput ?? "null", (_, value) => (typeof value === "string" ? visible(value) : value));
  } catch {
    return null;
  }
}

function tool(record, entry, view) {
  const outcome =
    record.success === false ? badge("failed", "bad") : record.success === null ? badge("no result") : null;
  const details = h(
    "details",
    { class: `entry tool ${record.success === false ? "failed" : ""}`, ontoggle: build },
    h(
      "summary",
      {},
      h("span", { class: "tool-name" }, record.toolName || "tool"),
      h("code", { class: "subject", title: record.filePath }, subject(record, parseInput(record))),
      outcome,
      record.durationMs ? h("span", { class: "muted num" }, duration(record.durationMs)) : null,
      h("span", { class: "muted num" }, clock(entry.at)),
    ),
  );
  async function build() {
    view.folds.set(record.id, details.open);
    if (!details.open || details.children.length > 1) return;
    const body = h("div", { class: "tool-body" }, loading());
    details.append(body);
    try {
      const full = entry.cut ? (await rpc("session.entry", { id: record.id })).tool : record;
      replace(body, toolBody(full, view));
      if (view.query) markWords(body, view.query);
    } catch (error) {
      replace(body, errorBox(error));
    }
  }
  details.build = build;
  if (view.folds.get(record.id) || view.openAll) details.open = true;
  return details;
}

function toolBody(record, view) {
  const input = parseInput(record);
  const changed = view.raw ? null : editDiff(input);
  return [
    h(
      "p",
      { class: "facts" },
      h("span", {}, link("session", { id: record.sessionId, at: record.id }, {}, "Link")),
      record.filePath &&
        h("span", {}, link("file", { path: record.filePath }, {}, `All calls on ${baseName(record.filePath)}`)),
    ),
    changed ?? block("Input", input && !view.raw ? inputText(input) : (record.toolInput ?? ""), view.query),
    record.errorMessage && block("Error", record.errorMessage, view.query, "bad"),
    record.toolOutput && block("Output", record.toolOutput, view.query),
  ];
}

const inputText = (input) =>
  typeof input.command === "string" && Object.keys(input).length <= 2 ? input.command : JSON.stringify(input, null, 2);

/** Return the changed lines of an edit; null for other calls. */
export function editDiff(input) {
  if (!input || typeof input !== "object") return null;
  const edits = Array.isArray(input.edits) ? input.edits : [input];
  const pairs = edits.map((one) => [one.old_string ?? one.oldString, one.new_string ?? one.newString]);
  if (pairs.every(([before, after]) => typeof before === "string" && typeof after === "string"))
    return h(
      "div",
      {},
      pairs.map(([before, after]) => lineDiff(before, after)),
    );
  const written = input.content ?? input.file_text;
  return typeof written === "string" && PATHS.some((key) => input[key]) ? lineDiff("", written) : null;
}

/** Return a text of a call: its first lines, or all of them if the words that somebody looks for are further below. */
function block(label, content, query, kind = "") {
  const lines = content.split("\n");
  const below = lines.slice(MAX_PLAIN_LINES).join("\n");
  const isCut = below !== "" && !(query && wordPattern(query)?.test(below));
  const pre = h(
    "pre",
    { tabindex: 0, "aria-label": label },
    isCut ? lines.slice(0, MAX_PLAIN_LINES).join("\n") : content,
  );
  const more =
    isCut &&
    h(
      "button",
      { type: "button", class: "rest", onclick: (event) => (replace(pre, content), event.target.remove()) },
      `Show all ${number(lines.length)} lines`,
    );
  return h("section", { class: `block ${kind}` }, h("h4", {}, label), pre, more);
}

function error(record, entry) {
  return h(
    "article",
    { class: "entry failure" },
    head(entry, record.id, h("h3", {}, `Error: ${record.errorType ?? "unknown"}`)),
    h("pre", { class: "plain" }, record.errorMessage ?? "No message."),
  );
}

function compaction(record, entry, view) {
  const size = (before, after, unit) => (before || after ? `${number(before)} → ${number(after)} ${unit}` : null);
  const sizes = [
    size(record.tokensBefore, record.tokensAfter, "tokens"),
    size(record.messagesBefore, record.messagesAfter, "messages"),
  ].filter(Boolean);
  return h(
    "article",
    { class: "entry compaction" },
    head(
      entry,
      record.id,
      h("h3", {}, "Context compacted"),
      h("span", {}, [record.cause, ...sizes].filter(Boolean).join(" · ")),
    ),
    record.summary
      ? fold("Summary that replaced it", () => text(record.summary, "summary", record, entry, view))
      : h("p", { class: "muted" }, "The harness gave no summary."),
  );
}

/** Return a block whose content is built when it is opened. */
export function fold(label, make, open = false) {
  const details = h(
    "details",
    { class: "fold", ontoggle: () => details.open && details.children.length === 1 && details.append(make()) },
    h("summary", {}, label),
  );
  details.open = open;
  return details;
}

export function injectionElement(injection) {
  return h(
    "article",
    { class: "entry injection", data: { at: injection.at } },
    h(
      "header",
      {},
      h("h3", {}, "Told by clankers"),
      h(
        "span",
        {},
        `${injection.kind === "start" ? "at the start" : "with the prompt"} · ${number(injection.ids.length)} items · about ${compact(Math.round(injection.characters / 4))} tokens`,
      ),
      h("span", { class: "anchor" }, clock(injection.at)),
    ),
    fold("What it was told", () =>
      h(
        "div",
        { class: "body" },
        h("pre", { class: "plain" }, injection.text),
        h(
          "p",
          { class: "facts" },
          injection.ids.map((id) => h("span", {}, h("code", {}, shortId(id)))),
        ),
      ),
    ),
  );
}

function wordPattern(query) {
  const words = query.match(/[\p{L}\p{N}_]{3,}/gu);
  return words && new RegExp(`(${words.join("|")})`, "giu");
}

/** Mark the words of the query in the text below an element, once. */
export function markWords(element, query) {
  const pattern = wordPattern(query);
  if (!pattern) return;
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentNode.localName !== "mark" && node.data.search(pattern) >= 0) found.push(node);
  }
  for (const node of found.slice(0, 200))
    node.replaceWith(...node.data.split(pattern).map((part, index) => (index % 2 ? h("mark", {}, part) : part)));
}
