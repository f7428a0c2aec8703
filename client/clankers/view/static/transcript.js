// A transcript of any length: windows of entries that are loaded near the screen and dropped far from it.

import { rpc } from "./api.js";
import { errorBox } from "./components.js";
import { h, replace } from "./dom.js";
import { entryElement, injectionElement, markWords } from "./entries.js";

const WINDOW_ENTRIES = 40;
const MAX_CHARACTERS = 12_000;
const ENTRY_PIXELS = 90;
const LOAD_MARGIN = "2000px 0px";
const DROP_PIXELS = 5_000;
const PASSING_MS = 80; // a window that leaves the screen sooner, as while the scroll bar is dragged, is not loaded

function highlight(element) {
  document.querySelector(".entry.target")?.classList.remove("target");
  element.classList.add("target");
}

export class Transcript {
  constructor(sessionId, total, injections, view, signal) {
    this.sessionId = sessionId;
    this.injections = injections;
    this.view = view;
    this.signal = signal;
    this.total = 0;
    this.wanted = null;
    this.windows = [];
    this.element = h("div", { class: "transcript" });
    this.observer = new IntersectionObserver((changes) => this.onScreen(changes), { rootMargin: LOAD_MARGIN });
    signal.addEventListener("abort", () => this.observer.disconnect());
    this.grow(total);
  }

  /** Add windows for entries that arrived; the last one may have become fuller. */
  grow(total) {
    const last = this.windows.at(-1);
    let loaded = null;
    if (last && total > this.total && last.count < WINDOW_ENTRIES) {
      last.count = Math.min(WINDOW_ENTRIES, total - last.first);
      if (last.loaded) loaded = this.load(last, true);
    }
    for (let first = this.windows.length * WINDOW_ENTRIES; first < total; first += WINDOW_ENTRIES) {
      const count = Math.min(WINDOW_ENTRIES, total - first);
      const element = h("div", { class: "window", style: { "min-height": `${count * ENTRY_PIXELS}px` } });
      const one = { first, count, element, loaded: null };
      element.dataset.index = this.windows.length;
      this.windows.push(one);
      this.element.append(element);
      this.observer.observe(element);
    }
    this.total = total;
    return loaded;
  }

  onScreen(changes) {
    for (const change of changes) {
      const one = this.windows[Number(change.target.dataset.index)];
      clearTimeout(one.timer);
      if (!change.isIntersecting) this.abandon(one);
      else if (this.isMoving()) one.timer = setTimeout(() => this.load(one), PASSING_MS);
      else this.load(one);
    }
    this.dropFar();
  }

  /** Tell whether windows are coming faster than they can be read. */
  isMoving() {
    const before = this.lastSeen ?? -Infinity;
    this.lastSeen = performance.now();
    return this.lastSeen - before < PASSING_MS;
  }

  /** Cancel the request of a window that left the screen before it was shown; it is loaded when it comes back. */
  abandon(one) {
    if (!one.loaded || one.element.firstChild || one === this.wanted) return;
    one.request.abort();
    one.loaded = null;
  }

  /** Drop the windows that are far from the screen, except one that somebody is on the way to. */
  dropFar() {
    for (const one of this.windows) {
      if (!one.element.firstChild || one === this.wanted) continue;
      const box = one.element.getBoundingClientRect();
      if (box.bottom < -DROP_PIXELS || box.top > innerHeight + DROP_PIXELS) this.drop(one);
    }
  }

  /** Load a window. Entries that are already shown keep their place. */
  load(one, again = false) {
    if (one.loaded && !again) return one.loaded;
    one.request = new AbortController();
    one.loaded = this.fetch(one, AbortSignal.any([this.signal, one.request.signal]));
    return one.loaded;
  }

  async fetch(one, signal) {
    try {
      // One entry more than is shown: an injection belongs before the next entry, wherever that is.
      const asked = {
        sessionId: this.sessionId,
        position: one.first,
        limit: WINDOW_ENTRIES + 1,
        maxCharacters: MAX_CHARACTERS,
      };
      const entries = await this.entries(asked, signal);
      if (signal.aborted) return;
      replace(one.element, this.elements(one, entries));
      one.element.style.removeProperty("min-height");
      this.dropFar(); // the screen may have moved on meanwhile
    } catch (error) {
      if (signal.aborted) return;
      replace(
        one.element,
        errorBox(error, () => this.load(one, true)),
      );
    }
  }

  /** Fetch entries; a reply that was full before all of them is continued. */
  async entries(asked, signal) {
    const entries = [];
    let page = await rpc("session.timeline", asked, signal);
    entries.push(...page.entries);
    while (page.cursor && entries.length < asked.limit) {
      const { sessionId, maxCharacters } = asked;
      page = await rpc(
        "session.timeline",
        { sessionId, maxCharacters, cursor: page.cursor, limit: asked.limit - entries.length },
        signal,
      );
      entries.push(...page.entries);
    }
    return entries;
  }

  elements(one, entries) {
    const shown = entries.slice(0, one.count);
    const out = [];
    const between = (from, to) => this.injections.filter(({ at }) => at >= from && at < to).map(injectionElement);
    if (one.first === 0) out.push(...between(0, shown[0]?.at ?? Infinity));
    shown.forEach((entry, index) => {
      out.push(entryElement(entry, this.view), ...between(entry.at, entries[index + 1]?.at ?? Infinity));
      const record = entry[entry.kind];
      if (this.view.seen && record?.id === this.view.seen)
        out.push(h("p", { class: "seen" }, h("span", {}, "You read up to here")));
    });
    return out;
  }

  drop(one) {
    one.element.style.setProperty("min-height", `${one.element.offsetHeight}px`);
    one.element.replaceChildren();
    one.loaded = null;
    this.observer.unobserve(one.element);
    this.observer.observe(one.element);
  }

  /** Show the entry with this id in the middle of the screen. */
  async goTo(id) {
    const { position } = await rpc(
      "session.timeline",
      { sessionId: this.sessionId, around: id, limit: 1, maxCharacters: 100 },
      this.signal,
    );
    await this.goToPosition(position);
    const element = document.getElementById(`entry-${id}`);
    if (!element) return;
    highlight(element);
    if (element.matches("details")) {
      element.open = true;
      await element.build?.();
    }
    if (this.view.query) markWords(element, this.view.query);
    const show = () => (element.querySelector("mark") ?? element).scrollIntoView({ block: "center" });
    show();
    // Windows above may change their height while they load: keep the entry where it is.
    requestAnimationFrame(show);
  }

  /** Show the first failed call or error between two positions that is later than a time; returns it, or null. */
  async goToFailure(first, last, after) {
    for (let index = Math.floor(first / WINDOW_ENTRIES); index * WINDOW_ENTRIES < last; index += 1) {
      const one = this.windows[index];
      this.wanted = one;
      await this.load(one);
      this.wanted = null;
      const failures = [...one.element.querySelectorAll(".entry.failed, .entry.failure")];
      const found = failures.find((element) => Number(element.dataset.at) > after);
      if (!found) continue;
      highlight(found);
      found.scrollIntoView({ block: "center" });
      return found;
    }
    return null;
  }

  async goToPosition(position) {
    const one = this.windows[Math.floor(position / WINDOW_ENTRIES)];
    if (!one) return;
    this.wanted = one;
    await this.load(one);
    this.wanted = null;
    const entries = one.element.querySelectorAll(":scope > [data-id]");
    (entries[position - one.first] ?? one.element).scrollIntoView({ block: "start" });
  }
}
