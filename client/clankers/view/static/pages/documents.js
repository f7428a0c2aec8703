// Documents that were added to the index.

import { rpc } from "../api.js";
import { badge, empty, heading, link, pages, sameAs, time } from "../components.js";
import { h } from "../dom.js";
import { bytes, plural } from "../format.js";

const PAGE_ROWS = 100;

export async function render({ signal }) {
  const [first, status] = await Promise.all([
    rpc("document.list", { limit: PAGE_ROWS }, signal),
    rpc("daemon.status", {}, signal),
  ]);
  if (!first.documents.length)
    return [
      heading("Documents"),
      empty(
        "No documents yet",
        "Add files or folders: Markdown, text, HTML, PDF, DOCX, source code. They are searched together with everything else.",
        "clankers-ctl docs add README.md",
      ),
    ];
  const next = async (cursor) => {
    const page = await rpc("document.list", { limit: PAGE_ROWS, cursor });
    return { rows: page.documents, cursor: page.cursor };
  };
  const row = (one) =>
    h(
      "li",
      {},
      link(
        "document",
        { id: one.id },
        { class: "row", data: { row: "" } },
        h("span", { class: "title" }, one.title || one.source),
        h(
          "span",
          { class: "facts" },
          [one.source, time(one.updatedAt), bytes(one.bytes), plural(one.chunks, "chunk")].map((part) =>
            h("span", {}, part),
          ),
        ),
        h("span", { class: "badges" }, badge(one.kind), one.complete ? null : badge("incomplete", "warn")),
      ),
    );
  return [
    heading("Documents", h("span", { class: "muted" }, plural(status.counts.documents ?? null, "document"))),
    pages({ rows: first.documents, cursor: first.cursor }, next, row),
    sameAs("clankers-ctl docs list"),
  ];
}
