// Starts the view: routes, navigation, keys, theme, and the stream of changes.

import { rpc, start } from "./api.js";
import { followChanges } from "./changes.js";
import { address, errorBox, link, loading } from "./components.js";
import { debounce, h, replace } from "./dom.js";

const PAGES = [
  ["search", "Search"],
  ["sessions", "Sessions"],
  ["recall", "Recall"],
  ["memories", "Memories"],
  ["files", "Files"],
  ["graph", "Graph"],
  ["overview", "Overview"],
  ["documents", "Documents"],
  ["skills", "Skills"],
  ["schedules", "Schedules"],
  ["index", "Health"],
  ["live", "Live"],
];
const PARENTS = { session: "sessions", memory: "memories", file: "files", document: "documents", skill: "skills" };
const KEYS = [
  ["/", "Search everything"],
  ["j  k", "Next and previous row"],
  ["Enter", "Open the row"],
  ["n  p", "Next and previous prompt, in a session"],
  ["e", "Next error, in a session"],
  ["o", "Open or close all tool calls, in a session"],
  ["?", "These keys"],
];

const MAX_RECENT = 200; // events that a page opened later can still show

const main = document.getElementById("main");
const findText = document.getElementById("find-text");
const listeners = new Set();
const recent = [];
let started = null;
let leave = new AbortController();
let visit = 0; // counts links that were followed and steps through the history

/** Show the page that the address names. With `kept`, what is shown stays until the new content is there. */
async function show({ kept = false } = {}) {
  leave.abort();
  leave = new AbortController();
  listeners.clear();
  const { signal } = leave;
  const mine = visit;
  const page = location.pathname.slice(1) || "overview";
  const params = new URLSearchParams(location.search);
  const current = PARENTS[page] ?? page;
  for (const one of document.querySelectorAll("#pages a")) {
    if (one.dataset.page === current) {
      one.setAttribute("aria-current", "page");
      one.parentElement.scrollLeft = one.offsetLeft - one.parentElement.offsetWidth / 2;
    } else one.removeAttribute("aria-current");
  }
  document.title = `${PAGES.find(([name]) => name === current)?.[1] ?? "clankers"} – clankers`;
  if (document.activeElement !== findText) findText.value = page === "search" ? (params.get("q") ?? "") : "";
  const before = document.body.dataset.page;
  document.body.dataset.page = page;
  let focused = before === page ? focusedControl() : null;
  if (!kept) replace(main, loading());
  main.setAttribute("aria-busy", "true");
  const context = {
    params: Object.fromEntries(params),
    signal,
    recent,
    project: started.project,
    harnesses: started.harnesses,
    go,
    // What was typed just before a link was followed has no effect any more.
    set: (patch, options = {}) =>
      visit !== mine ||
      go(page, { ...Object.fromEntries(new URLSearchParams(location.search)), ...patch }, options),
    refresh: () => show({ kept: true }),
    onChange: (listener) => listeners.add(listener),
    title: (title) => (document.title = `${title} – clankers`),
  };
  try {
    const module = await import(`./pages/${page}.js`);
    const made = await module.render(context);
    if (signal.aborted) return;
    if (kept) focused = focusedControl(); // somebody may have gone on typing
    replace(main, made);
    if (focused || (before && before !== page && document.activeElement !== findText)) restoreFocus(focused);
    performance.mark("shown");
    context.shown?.();
  } catch (error) {
    if (!signal.aborted)
      replace(
        main,
        errorBox(error, () => show()),
      );
  }
  if (!signal.aborted) main.removeAttribute("aria-busy");
}

const CONTROLS = "input, select, textarea, button, a[href], summary";
const nameOf = (control) =>
  control.getAttribute("aria-label") ??
  (control.closest("label") ?? control.firstElementChild ?? control).firstChild?.textContent;
const sameControls = (tag, name) =>
  [...main.querySelectorAll(CONTROLS)].filter((one) => one.localName === tag && nameOf(one) === name);

/** Describe the control that has the focus, so that it can be found again after the page was built anew. */
function focusedControl() {
  const control = document.activeElement;
  if (!main.contains(control) || !control.matches(CONTROLS)) return null;
  const [tag, name] = [control.localName, nameOf(control)];
  const typed = control.matches("[type=search], [type=text], textarea");
  const { value, selectionStart: caret } = control;
  return { tag, name, at: sameControls(tag, name).indexOf(control), typed: typed ? { value, caret } : null };
}

/** Give the focus back to the same control; on another page, or if there is none, to the content. */
function restoreFocus(focused) {
  const control = focused && sameControls(focused.tag, focused.name)[focused.at];
  (control ?? main).focus({ preventScroll: true });
  if (!control || !focused.typed) return;
  control.value = focused.typed.value;
  control.setSelectionRange(focused.typed.caret, focused.typed.caret);
}

/** Go to a page. `quiet` only changes the address; `replaced` adds no step to the history. */
function go(page, params, { quiet = false, replaced = false } = {}) {
  const target = address(page, params);
  if (target === location.pathname + location.search) return;
  history[replaced || quiet ? "replaceState" : "pushState"](null, "", target);
  if (quiet) return;
  const isSame = document.body.dataset.page === page;
  if (!isSame) visit += 1;
  show({ kept: isSame });
  if (!replaced) scrollTo(0, 0);
}

function followLink(event) {
  const anchor = event.target.closest?.("a[href]");
  if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const target = anchor.getAttribute("href");
  if (!target.startsWith("/") || target.startsWith("/api/") || anchor.target) return;
  event.preventDefault();
  if (target === location.pathname + location.search) return;
  history.pushState(null, "", target);
  visit += 1;
  show();
  scrollTo(0, 0);
}

function move(step) {
  const rows = [...main.querySelectorAll("[data-row]")].filter((row) => row.offsetParent);
  const at = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input, textarea, select");
  if (typing && event.key === "Escape") event.target.blur();
  if (typing) return;
  if (event.key === "/") {
    event.preventDefault();
    findText.focus();
    findText.select();
  } else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "?") showKeys();
  else main.dispatchEvent(new CustomEvent("view-key", { detail: event.key }));
}

function showKeys() {
  const rows = KEYS.map(([keys, text]) =>
    h(
      "tr",
      {},
      h(
        "th",
        { scope: "row" },
        keys.split("  ").map((key) => h("kbd", {}, key)),
      ),
      h("td", {}, text),
    ),
  );
  const dialog = h(
    "dialog",
    { "aria-labelledby": "keys-title", onclose: () => dialog.remove() },
    h("h2", { id: "keys-title" }, "Keys"),
    h("table", { class: "keys" }, h("tbody", {}, rows)),
    h(
      "div",
      { class: "actions" },
      h("button", { type: "button", onclick: () => dialog.close(), autofocus: true }, "Close"),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

function switchTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  setTheme(now === "dark" ? "light" : "dark");
}

/** Follow the changes of the store. A gap in them makes the page read again what it shows. */
function follow() {
  const state = document.getElementById("state");
  const say = (text, kind) => {
    state.textContent = text;
    state.className = kind;
  };
  followChanges((event) => {
    if (event.type === "lost") say("Disconnected", "bad");
    else if (event.type === "away" || (event.type === "hello" && !event.connected)) say("The daemon is away", "bad");
    else say("Live", "good");
    recent.push(event);
    if (recent.length > MAX_RECENT) recent.shift();
    for (const listener of listeners) listener(event);
  });
}

function buildShell() {
  replace(
    document.getElementById("pages"),
    PAGES.map(([name, title]) => link(name, {}, { data: { page: name } }, title)),
  );
  document.getElementById("theme").addEventListener("click", switchTheme);
  document.getElementById("help").addEventListener("click", showKeys);
  document.addEventListener("click", followLink);
  document.addEventListener("keydown", onKey);
  addEventListener("popstate", () => {
    visit += 1;
    show();
  });
  const typed = debounce(() => {
    const onSearch = location.pathname === "/search";
    const kept = onSearch ? Object.fromEntries(new URLSearchParams(location.search)) : {};
    go("search", { ...kept, q: findText.value.trim() }, { replaced: onSearch });
  });
  findText.addEventListener("input", (event) => event.isComposing || typed());
  findText.addEventListener("compositionend", typed);
  document.getElementById("find").addEventListener("submit", (event) => {
    event.preventDefault();
    move(1);
  });
}

async function run() {
  const theme = localStorage.getItem("theme");
  if (theme) setTheme(theme);
  import(`./pages/${location.pathname.slice(1) || "overview"}.js`).catch(() => null); // meanwhile; `show` reports a failure
  try {
    started = await start();
  } catch (error) {
    replace(
      main,
      errorBox(error),
      error.status === 401 &&
        h("p", {}, "Run ", h("code", {}, "clankers-ctl view"), " and open the address that it prints."),
    );
    return;
  }
  buildShell();
  if (location.pathname === "/") {
    const { sessions } = await rpc("session.list", { limit: 1 }).catch(() => ({ sessions: [] }));
    history.replaceState(
      null,
      "",
      sessions.length && started.project ? address("sessions", { project: started.project }) : "/overview",
    );
  }
  follow();
  await show();
}

run();
