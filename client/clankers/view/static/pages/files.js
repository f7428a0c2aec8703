// Files: which files tool calls touched, the last touched first.

import { rpc } from "../api.js";
import { badge, empty, heading, link, pages, sameAs, select, time } from "../components.js";
import { debounce, h } from "../dom.js";
import { number, plural } from "../format.js";

const PAGE_ROWS = 100;

export async function render({ params, set, signal }) {
  const asked = { query: params.path, project: params.project, limit: PAGE_ROWS };
  const [first, projects] = await Promise.all([
    rpc("file.list", asked, signal),
    rpc("project.list", { limit: 100 }, signal),
  ]);
  const filtered = params.path || params.project;
  if (!first.total && !filtered)
    return [
      heading("Files"),
      empty(
        "No tool call has touched a file yet",
        "When an agent reads or changes a file, the file is listed here with the sessions and the prompts that led to it.",
        "clankers-ctl capture status",
      ),
    ];
  let shown = first.files.length;
  const next = async () => {
    const page = await rpc("file.list", { ...asked, offset: shown });
    shown += page.files.length;
    return { rows: page.files, cursor: shown < page.total ? shown : null };
  };
  const typed = debounce((value) => set({ path: value }, { replaced: true }));
  return [
    heading("Files", h("span", { class: "muted" }, plural(first.total, "file"))),
    h(
      "div",
      { class: "toolbar" },
      h("input", {
        type: "search",
        "aria-label": "Path contains",
        placeholder: "Path contains …",
        value: params.path ?? "",
        oninput: (event) => typed(event.target.value),
      }),
      select(
        "in",
        params.project ?? "",
        [["", "all projects"], ...projects.map((one) => [one.id, one.name])],
        (value) => set({ project: value }),
      ),
    ),
    first.total
      ? pages({ rows: first.files, cursor: shown < first.total ? shown : null }, next, row)
      : empty("No file matches", "Change or remove the filters."),
    sameAs('clankers-ctl query "SELECT file_path, count(*) FROM tools GROUP BY 1"'),
  ];
}

function row(file) {
  return h(
    "li",
    {},
    link(
      "file",
      { path: file.path },
      { class: "row", data: { row: "" } },
      h("span", { class: "path" }, file.path),
      h(
        "span",
        { class: "facts" },
        [time(file.lastAt), plural(file.sessions, "session"), plural(file.calls, "call")].map((part) =>
          h("span", {}, part),
        ),
      ),
      h(
        "span",
        { class: "badges" },
        file.edits ? badge(plural(file.edits, "change"), "good") : badge("only read"),
        file.failures ? badge(`${number(file.failures)} failed`, "bad") : null,
      ),
    ),
  );
}
