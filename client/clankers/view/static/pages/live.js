// Live: changes of the store as they come, with pause.

import { badge, heading, link, unknownCard } from "../components.js";
import { h, replace } from "../dom.js";
import { baseName, clock, moment, plural, shortId } from "../format.js";

const MAX_ROWS = 300;
const PAGES = { session: "session", memory: "memory", document: "document", skill: "skill" };
const KINDS = ["session", "message", "memory", "document", "skill", "job", "schedule"];

export async function render({ params, set, onChange, recent }) {
  const body = h("tbody");
  const state = h(
    "p",
    { class: "muted", role: "status" },
    "Waiting for something to happen. Start a session of an agent, and it appears here.",
  );
  const hidden = new Set((params.hide ?? "").split(",").filter(Boolean));
  let paused = false;
  let waiting = [];
  const add = (event) => {
    body.prepend(row(event));
    while (body.children.length > MAX_ROWS) body.lastChild.remove();
  };
  const button = h("button", { type: "button", "aria-pressed": "false", onclick: pause }, "Pause");
  function pause() {
    paused = !paused;
    button.textContent = paused ? "Go on" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
    if (!paused) waiting.splice(0).forEach(add);
    say();
  }
  const say = () =>
    replace(state, paused ? `Paused: ${plural(waiting.length, "event")} waiting.` : "Following all changes.");
  const isShown = (event) => event.type !== "hello" && event.type !== "lost" && !hidden.has(event.kind);
  for (const event of recent.filter(isShown)) add(event);
  onChange((event) => {
    if (!isShown(event)) return;
    if (paused) waiting = [...waiting, event].slice(-MAX_ROWS);
    else add(event);
    say();
  });
  const toggle = (kind) => {
    if (!hidden.delete(kind)) hidden.add(kind);
    set({ hide: [...hidden].join(",") }, { quiet: true });
  };
  const box = (kind) =>
    h(
      "label",
      { class: "control check" },
      h("input", { type: "checkbox", checked: !hidden.has(kind), onchange: () => toggle(kind) }),
      kind,
    );
  return [
    heading("Live"),
    h("div", { class: "toolbar" }, button, KINDS.map(box)),
    state,
    h("div", { class: "card scroll", tabindex: 0 }, h("table", { class: "events" }, body)),
  ];
}

function row(event) {
  if (event.type === "reread") return line(event, badge("connected", "good"), "Pages read again what they show.");
  if (event.type === "away") return line(event, badge("daemon away", "bad"), event.problem);
  if (event.type !== "change" || !KINDS.includes(event.kind))
    return h("tr", {}, h("td", { colspan: 3 }, unknownCard(event)));
  const { facts = {} } = event;
  const target =
    event.kind === "message"
      ? link("session", { id: facts.sessionId, at: event.id }, { data: { row: "" } }, facts.role ?? "message")
      : PAGES[event.kind] && event.action !== "deleted"
        ? link(PAGES[event.kind], { id: event.id }, { data: { row: "" } }, shortId(event.id))
        : shortId(event.id);
  const where = [facts.title, baseName(facts.projectPath)].filter(Boolean).join(" · ");
  return line(
    event,
    badge(`${event.kind} ${event.action}`, event.action === "deleted" ? "warn" : ""),
    target,
    where && h("span", { class: "muted" }, ` ${where}`),
  );
}

const line = (event, what, ...rest) =>
  h(
    "tr",
    {},
    h("td", { title: moment(event.at ?? Date.now()) }, clock(event.at ?? Date.now())),
    h("td", {}, what),
    h("td", {}, rest),
  );
