// Parts that several pages use: errors, empty states, facets, dialogs, notices, buttons.

import { h, replace } from "./dom.js";
import { minute, moment, number, when } from "./format.js";

export const time = (at) =>
  h("time", { datetime: at ? new Date(at).toISOString() : null, title: moment(at) }, when(at));

/** Return a link to a page of the view; parameters that are empty are left out. */
export const link = (page, params, props, ...children) =>
  h("a", { href: address(page, params), ...props }, ...children);

export function address(page, params = {}) {
  const given = Object.entries(params).filter(
    ([, value]) => value !== null && value !== undefined && value !== "" && value !== false,
  );
  const query = new URLSearchParams(given).toString();
  return `/${page}${query ? `?${query}` : ""}`;
}

export const heading = (title, ...rest) => h("div", { class: "heading-row" }, h("h1", {}, title), ...rest);
export const badge = (text, kind = "", title = null) => h("span", { class: `badge ${kind}`, title }, text);
export const facts = (...parts) =>
  h(
    "p",
    { class: "facts" },
    parts
      .flat()
      .filter((part) => part || part === 0)
      .map((part) => h("span", {}, part)),
  );

export function errorBox(error, retry = null) {
  return h(
    "div",
    { class: "error-box", role: "alert" },
    h("strong", {}, error.code ? `Error ${error.code}` : "Error"),
    h("p", {}, error.message),
    retry && h("button", { type: "button", onclick: retry }, "Try again"),
  );
}

/** Return what to do next where there is nothing to show. */
export function empty(title, text, ...commands) {
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, title),
    h("p", {}, text),
    commands.map((one) => command(one)),
  );
}

/** Return what to do next while nothing has been captured at all. */
export const nothingCaptured = () =>
  empty(
    "Nothing has been captured yet",
    "Connect your coding agents, then start a session as usual. It appears here while it runs. You can also import the history you already have.",
    "clankers-ctl setup",
    "clankers-ctl import claude-code",
  );

/** Return a command line with a button that copies it. */
export function command(line) {
  return h("p", { class: "command" }, h("code", {}, line), copyButton(line));
}

export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "quiet", onclick: copy }, label);
  async function copy() {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  }
  return button;
}

export const loading = (what = "Loading") => h("p", { class: "loading", role: "status" }, `${what} …`);

/** Fill an element with what `make` returns, and with its error if it fails. */
export async function fill(element, make, signal) {
  try {
    const made = await make();
    if (!signal?.aborted) replace(element, made);
  } catch (error) {
    if (error.name === "AbortError" || signal?.aborted) return;
    replace(
      element,
      errorBox(error, () => fill(element, make, signal)),
    );
  }
}

const WIDE = matchMedia("(min-width: 60rem)");
WIDE.addEventListener("change", () => {
  for (const one of document.querySelectorAll("details.side")) one.open = WIDE.matches;
});

/** Return what stands beside the content of a page; in a narrow window it is above it, folded. */
export const side = (label, ...children) =>
  h("details", { class: "side", open: WIDE.matches }, h("summary", {}, label), ...children);

/** Return links that narrow a list: one for each value, with its count; null if it was not counted. */
export function facet(title, values, chosen, choose, label = (value) => value) {
  const shown = values.filter(([value, count]) => count !== 0 || value === chosen);
  if (!shown.length) return null;
  return h(
    "section",
    { class: "facet" },
    h("h2", {}, title),
    h(
      "ul",
      {},
      shown.map(([value, count]) =>
        h(
          "li",
          {},
          h(
            "button",
            {
              type: "button",
              "aria-pressed": String(value === chosen),
              onclick: () => choose(value === chosen ? null : value),
            },
            h("span", {}, label(value)),
            count === null ? null : h("span", { class: "count" }, number(count)),
          ),
        ),
      ),
    ),
  );
}

export function select(label, value, options, choose) {
  const element = h(
    "select",
    { onchange: (event) => choose(event.target.value) },
    options.map(([key, text]) => h("option", { value: key, ...(key === value ? { selected: true } : {}) }, text)),
  );
  return h("label", { class: "control" }, h("span", {}, label), element);
}

export const toggle = (label, checked, choose) =>
  h(
    "label",
    { class: "control check" },
    h("input", { type: "checkbox", checked, onchange: (event) => choose(event.target.checked) }),
    label,
  );

/** Return the parts of a slider through the time since `oldest`: what it is for, the slider, and its time. */
export function timeRange(title, oldest, at, label, choose, text = (time) => `what was known on ${minute(time)}`) {
  const output = h("output", {}, at ? text(at) : "now");
  const slider = h("input", {
    type: "range",
    min: oldest,
    max: Date.now(),
    step: 1000,
    value: at ?? Date.now(),
    "aria-label": label,
    oninput: (event) => (output.value = text(Number(event.target.value))),
    onchange: (event) => choose(event.target.value),
  });
  return [h("span", { class: "muted" }, title), slider, output];
}

/** Return a slider that shows a page as it was at an earlier time; null if there is no past to look at. */
export function timeSlider(oldest, asOf, set, ...rest) {
  if (!oldest || Date.now() - oldest < 60_000) return null;
  return h(
    "div",
    { class: "asof" },
    ...timeRange(
      "What was known",
      oldest,
      asOf,
      "Show what was known at this time",
      (time) => set({ asof: time }),
      (time) => `as it was on ${minute(time)}`,
    ),
    asOf ? h("button", { type: "button", class: "quiet", onclick: () => set({ asof: "" }) }, "Back to now") : null,
    ...rest,
  );
}

/** Return a list that loads further pages on request; `row` makes one row. */
export function pages(first, next, row, props = { class: "rows" }) {
  const list = h("ol", props);
  const more = h("div", { class: "more" });
  const add = ({ rows, cursor }) => {
    list.append(...rows.map(row));
    replace(more, cursor && h("button", { type: "button", onclick: () => load(cursor) }, "Load more"));
  };
  async function load(cursor) {
    replace(more, loading());
    try {
      add(await next(cursor));
    } catch (error) {
      replace(
        more,
        errorBox(error, () => load(cursor)),
      );
    }
  }
  add(first);
  return [list, more];
}

/** Ask before a change; resolves to true if it was confirmed. */
export const confirm = (title, text, action) => dialogOf(title, [h("p", {}, text)], action, "danger");

/** Show a dialog with this content; resolves to true if its action was chosen. */
export function dialogOf(title, content, action, kind = "primary") {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title", onclose: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) },
      h("h2", { id: "dialog-title" }, title),
      content,
      h(
        "div",
        { class: "actions" },
        h("button", { type: "button", onclick: () => dialog.close("no"), autofocus: true }, "Cancel"),
        h("button", { type: "button", class: kind, onclick: () => dialog.close("yes") }, action),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Say what was done, for a while; `undo` takes it back. */
export function notice(text, undo = null) {
  const element = h("div", { class: "notice" }, h("span", {}, text));
  const remove = () => element.remove();
  if (undo)
    element.append(
      h(
        "button",
        { type: "button", onclick: async () => (remove(), (await attempt(undo)) && notice("Undone.")) },
        "Undo",
      ),
    );
  element.append(h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: remove }, "×"));
  document.getElementById("notices").append(element);
  setTimeout(remove, undo ? 15_000 : 5_000);
}

/** Run an action; a failure is shown as an error. */
export async function attempt(action) {
  try {
    await action();
    return true;
  } catch (error) {
    const box = h("div", { class: "notice bad" }, h("span", {}, error.message));
    box.append(
      h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => box.remove() }, "×"),
    );
    document.getElementById("notices").append(box);
    return false;
  }
}

/** Return a record of a kind that this version does not know, as it was stored. */
export function unknownCard(record) {
  return h(
    "article",
    { class: "card unknown" },
    h("h3", {}, `Unknown record: ${record.kind ?? "no kind"}`),
    h("pre", {}, JSON.stringify(record, null, 2)),
  );
}

/** Say which command shows the same. */
export const sameAs = (line) => h("p", { class: "same-as" }, "In a terminal: ", h("code", {}, line));
