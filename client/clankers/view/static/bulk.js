// Changes of several memories at once. Each can be taken back.

import { change } from "./api.js";
import { attempt, confirm, dialogOf, notice } from "./components.js";
import { h } from "./dom.js";
import { number, plural } from "./format.js";

const ALL = { scopes: ["*"] };
const RESTORED = ["deleted", "archived", "superseded"];

const call = (method, memory, extra = {}) => change(method, { id: memory.id, ...ALL, ...extra });
const supersede = (source, target) =>
  change("relation.add", { source: source.id, target: target.id, type: "SUPERSEDES", ...ALL });
const count = (memories) => plural(memories.length, "memory", "memories");

/** Return the bar with the changes of the memories in `chosen`, and the function that shows it after a choice. */
export function bulkBar(chosen, again) {
  const element = h("div", { class: "bulk", role: "region", "aria-label": "Change the chosen memories", hidden: true });

  /** Make a change for each memory in turn, then show the list again, also if one of them failed. */
  const each = async (memories, make) => {
    try {
      for (const memory of memories) await make(memory);
    } finally {
      again();
    }
  };
  /** Make a change, and offer to take it back. */
  const apply = async (memories, make, done, undo = null) => {
    if (await attempt(() => each(memories, make))) notice(done, undo && (() => each(memories, undo)));
  };
  const forget = async (memories) => {
    const sure = await confirm(
      `Forget ${count(memories)}?`,
      "Agents are not told them any more. You can restore them.",
      "Forget",
    );
    if (!sure) return;
    await apply(
      memories,
      (memory) => call("memory.delete", memory),
      `${count(memories)} forgotten.`,
      (memory) => call("memory.restore", memory),
    );
  };
  const pin = (memories, pinned) => {
    const others = memories.filter((memory) => memory.pinned !== pinned);
    return apply(
      others,
      (memory) => call("memory.pin", memory, { pinned }),
      `${count(others)} ${pinned ? "pinned" : "unpinned"}.`,
      (memory) => call("memory.pin", memory, { pinned: !pinned }),
    );
  };
  const restore = (memories) => {
    const takeBack = (memory) =>
      memory.state === "deleted"
        ? call("memory.delete", memory)
        : memory.state === "superseded" && supersede({ id: memory.supersededBy }, memory);
    const isArchived = memories.some((memory) => memory.state === "archived"); // only time archives
    return apply(
      memories,
      (memory) => call("memory.restore", memory),
      `${count(memories)} restored.`,
      isArchived ? null : takeBack,
    );
  };
  const merge = async (memories) => {
    const wanted = await askMerge(memories);
    if (!wanted) return;
    const { kept, text } = wanted;
    const others = memories.filter((memory) => memory !== kept);
    const write = (content) => call("memory.update", kept, { content, reason: "merged in the view" });
    const isEdited = text !== kept.content;
    const undo = async () => {
      for (const memory of others) await call("memory.restore", memory);
      if (isEdited) await write(kept.content);
      again();
    };
    const make = async () => {
      if (isEdited) await write(text);
      await each(others, (memory) => supersede(kept, memory));
    };
    if (await attempt(make)) notice(`Merged: ${count(others)} superseded.`, undo);
  };
  const button = (label, action, kind = "") =>
    h("button", { type: "button", class: kind, onclick: () => action([...chosen.values()]) }, label);

  function update() {
    const memories = [...chosen.values()];
    const is = (state) => memories.every((memory) => memory.state === state);
    const isOneScope = new Set(memories.map((memory) => memory.scope)).size === 1;
    element.hidden = !memories.length;
    element.replaceChildren(
      h("span", {}, `${number(memories.length)} chosen`),
      ...(memories.every((memory) => RESTORED.includes(memory.state)) ? [button("Restore", restore)] : []),
      ...(memories.every((memory) => memory.pinned)
        ? [button("Unpin", (list) => pin(list, false))]
        : [button("Pin", (list) => pin(list, true))]),
      ...(memories.length > 1 && is("current") && isOneScope ? [button("Merge", merge)] : []),
      ...(memories.every((memory) => memory.state !== "deleted") ? [button("Forget", forget, "danger")] : []),
      memories.length > 1 && !isOneScope
        ? h("span", { class: "muted small" }, "Only memories of one scope can be merged.")
        : "",
    );
  }
  return { element, update };
}

/** Ask which memory stays and with which text; resolves to null if nothing is to be merged. */
function askMerge(memories) {
  const newestFirst = [...memories].sort((a, b) => b.createdAt - a.createdAt);
  let kept = newestFirst[0];
  const text = h("textarea", { "aria-label": "Text of the memory that stays", value: kept.content });
  const choice = (memory) =>
    h(
      "label",
      { class: "choice" },
      h("input", {
        type: "radio",
        name: "kept",
        checked: memory === kept,
        onchange: () => ((kept = memory), (text.value = memory.content)),
      }),
      h("span", {}, memory.content),
    );
  return dialogOf(
    `Merge ${count(memories)}?`,
    [
      h("p", {}, "One stays, with the text below. It supersedes the others: agents are not told them any more."),
      h("div", { class: "choices", role: "radiogroup", "aria-label": "Which one stays" }, newestFirst.map(choice)),
      text,
    ],
    "Merge",
  ).then((yes) => (yes && text.value.trim() ? { kept, text: text.value.trim() } : null));
}
