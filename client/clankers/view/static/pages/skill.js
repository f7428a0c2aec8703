// One skill with its versions.

import { change, rpc } from "../api.js";
import { attempt, badge, confirm, facts, heading, notice, sameAs, select, time } from "../components.js";
import { h } from "../dom.js";
import { number } from "../format.js";
import { markdown } from "../markdown.js";

export async function render({ params, set, signal, go, title }) {
  const version = params.version ? Number(params.version) : null;
  const [skill, versions] = await Promise.all([
    rpc("skill.get", { id: params.id, version }, signal),
    rpc("skill.versions", { id: params.id }, signal),
  ]);
  title(skill.name);
  const remove = async () => {
    if (
      !(await confirm(
        "Delete this skill?",
        `“${skill.name}” is deleted with ${number(versions.length)} versions. It cannot be undone.`,
        "Delete",
      ))
    )
      return;
    if (await attempt(() => change("skill.delete", { id: skill.id }))) {
      notice("The skill was deleted.");
      go("skills", {});
    }
  };
  return [
    heading(
      skill.name,
      skill.tags.map((tag) => badge(tag)),
    ),
    h("p", {}, skill.description),
    facts(
      time(skill.updatedAt),
      `version ${number(skill.version)} of ${number(versions.length)}`,
      skill.createdBy && `by ${skill.createdBy}`,
      skill.tools.length ? `tools: ${skill.tools.join(", ")}` : null,
    ),
    h(
      "div",
      { class: "toolbar" },
      versions.length > 1
        ? select(
            "version",
            String(skill.version),
            versions.map((one) => [String(one.version), `${one.version}: ${one.description}`]),
            (value) => set({ version: value }),
          )
        : null,
      h("button", { type: "button", class: "danger end", onclick: remove }, "Delete skill"),
    ),
    h("article", { class: "card" }, markdown(skill.instructions || "No instructions.")),
    skill.files.map((file) =>
      h("details", { class: "card fold" }, h("summary", {}, file.path), h("pre", { class: "plain" }, file.text)),
    ),
    sameAs(`clankers-ctl skill show ${skill.name}`),
  ];
}
