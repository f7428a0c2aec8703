// Skills: instructions that agents look up.

import { rpc } from "../api.js";
import { badge, empty, heading, link, pages, sameAs, time } from "../components.js";
import { h } from "../dom.js";
import { number, plural } from "../format.js";

const PAGE_ROWS = 100;

export async function render({ signal }) {
  const [first, status] = await Promise.all([
    rpc("skill.list", { limit: PAGE_ROWS }, signal),
    rpc("daemon.status", {}, signal),
  ]);
  if (!first.skills.length)
    return [
      heading("Skills"),
      empty(
        "No skills yet",
        "A skill is a set of instructions that agents find by searching. Import the SKILL.md files that you already have.",
        "clankers-ctl skill import ~/.claude/skills/release",
      ),
    ];
  const next = async (cursor) => {
    const page = await rpc("skill.list", { limit: PAGE_ROWS, cursor });
    return { rows: page.skills, cursor: page.cursor };
  };
  const row = (one) =>
    h(
      "li",
      {},
      link(
        "skill",
        { id: one.id },
        { class: "row", data: { row: "" } },
        h("span", { class: "title" }, one.name),
        h(
          "span",
          { class: "facts" },
          [one.description, time(one.updatedAt), `version ${number(one.version)}`].map((part) => h("span", {}, part)),
        ),
        h(
          "span",
          { class: "badges" },
          one.tags.map((tag) => badge(tag)),
        ),
      ),
    );
  return [
    heading("Skills", h("span", { class: "muted" }, plural(status.counts.skills ?? null, "skill"))),
    pages({ rows: first.skills, cursor: first.cursor }, next, row),
    sameAs("clankers-ctl skill list"),
  ];
}
