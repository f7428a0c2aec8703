// One file: every call on it, with the prompt that led to it and what it changed.

import { rpc } from "../api.js";
import { badge, empty, facts, heading, link, pages, time } from "../components.js";
import { h } from "../dom.js";
import { editDiff, fold, parseInput } from "../entries.js";
import { baseName, duration, firstLine, plural, shortId } from "../format.js";

const PAGE_ROWS = 30;

export async function render({ params, signal, title }) {
  const asked = { path: params.path, limit: PAGE_ROWS };
  const first = await rpc("file.history", asked, signal);
  title(baseName(params.path));
  const next = async (cursor) => {
    const page = await rpc("file.history", { ...asked, cursor });
    return { rows: page.touches, cursor: page.cursor };
  };
  return [
    heading(baseName(params.path), h("span", { class: "muted" }, plural(first.total, "call"))),
    h("p", { class: "path muted" }, params.path),
    h(
      "p",
      { class: "toolbar" },
      link("search", { q: baseName(params.path) }, {}, "Search for its name"),
      link("files", {}, {}, "All files"),
    ),
    first.total
      ? pages({ rows: first.touches, cursor: first.cursor }, next, touch, { class: "cards" })
      : empty("No call on this file is stored", "It may have been deleted with its session."),
  ];
}

function touch({ tool, sessionTitle, source, prompt, promptId }) {
  const diff = editDiff(parseInput(tool));
  return h(
    "li",
    {},
    h(
      "article",
      { class: "card stack" },
      h(
        "p",
        { class: "prompt" },
        prompt
          ? link("session", { id: tool.sessionId, at: promptId }, {}, firstLine(prompt, 200))
          : h("span", { class: "muted" }, "No prompt before this call is stored."),
      ),
      facts(
        h("strong", {}, tool.toolName),
        tool.success === false ? badge("failed", "bad") : null,
        time(tool.createdAt),
        duration(tool.durationMs),
        source,
        link(
          "session",
          { id: tool.sessionId, at: tool.id },
          { data: { row: "" } },
          sessionTitle || shortId(tool.sessionId),
        ),
      ),
      diff ??
        (tool.toolOutput || tool.errorMessage
          ? fold("Output", () => h("pre", { class: "plain" }, tool.errorMessage ?? tool.toolOutput))
          : null),
    ),
  );
}
