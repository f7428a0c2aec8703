// One document: its text, part by part.

import { change, rpc } from "../api.js";
import { attempt, confirm, facts, heading, notice, sameAs, time } from "../components.js";
import { h } from "../dom.js";
import { markWords } from "../entries.js";
import { bytes, number, plural } from "../format.js";
import { markdown } from "../markdown.js";

const PART_CHARACTERS = 30_000;

export async function render(context) {
  const { params, signal, go, title } = context;
  const first = await rpc("document.get", { id: params.id, length: PART_CHARACTERS }, signal);
  const { document: info } = first;
  title(info.title || info.source);
  const body = h("article", { class: "card document" });
  const show = (part) => {
    const element = info.kind === "markdown" ? markdown(part.text) : h("pre", { class: "plain" }, part.text);
    if (params.q) markWords(element, params.q);
    body.append(element);
    if (part.nextOffset === null) return;
    const more = h(
      "button",
      {
        type: "button",
        class: "rest",
        onclick: async () => (
          more.remove(),
          show(await rpc("document.get", { id: info.id, offset: part.nextOffset, length: PART_CHARACTERS }))
        ),
      },
      `Show more of ${number(info.characters)} characters`,
    );
    body.append(more);
  };
  show(first);
  const remove = async () => {
    if (
      !(await confirm(
        "Delete this document?",
        `“${info.title}” and its ${plural(info.chunks, "chunk")} leave the index. The file itself stays.`,
        "Delete",
      ))
    )
      return;
    if (await attempt(() => change("document.delete", { id: info.id }))) {
      notice("The document was deleted.");
      go("documents", {});
    }
  };
  return [
    heading(info.title || info.source),
    facts(
      info.source,
      info.kind,
      time(info.updatedAt),
      bytes(info.bytes),
      plural(info.chunks, "chunk"),
      `chunked as ${info.strategy}`,
    ),
    h(
      "div",
      { class: "toolbar" },
      h("button", { type: "button", class: "danger end", onclick: remove }, "Delete document"),
    ),
    body,
    sameAs(`clankers-ctl docs show ${info.id}`),
  ];
}
