// Scheduled actions and their runs.

import { change, rpc } from "../api.js";
import { attempt, badge, empty, facts, heading, notice, sameAs, time } from "../components.js";
import { h } from "../dom.js";
import { moment, plural } from "../format.js";

const STATES = { done: "good", failed: "bad", skipped: "warn" };

export async function render({ refresh, signal }) {
  const [page, runs] = await Promise.all([
    rpc("schedule.list", { limit: 200 }, signal),
    rpc("schedule.history", { limit: 30 }, signal),
  ]);
  if (!page.actions.length)
    return [
      heading("Schedules"),
      empty(
        "Nothing is scheduled",
        "A scheduled action runs a prompt or a built-in at times you choose.",
        'clankers-ctl schedule create "Summarise the week" "16:00 weekly(friday)"',
      ),
    ];
  const again = refresh;
  const enable = async (action, enabled) => {
    if (await attempt(() => change("schedule.enable", { id: action.id, enabled })))
      notice(
        enabled ? "Enabled." : "Disabled.",
        async () => (await change("schedule.enable", { id: action.id, enabled: !enabled }), again()),
      );
    again();
  };
  const card = (action) =>
    h(
      "li",
      { class: "card" },
      h(
        "div",
        { class: "heading-row" },
        h("h2", {}, action.description),
        action.enabled ? badge("enabled", "good") : badge("disabled"),
        h(
          "button",
          { type: "button", class: "quiet end", onclick: () => enable(action, !action.enabled) },
          action.enabled ? "Disable" : "Enable",
        ),
      ),
      facts(
        h("code", {}, action.schedule),
        action.timezone,
        action.enabled && action.nextRun ? `next ${moment(action.nextRun)}` : "will not run",
        action.builtin && `built-in ${action.builtin}`,
      ),
    );
  const row = (run) =>
    h(
      "tr",
      {},
      h("td", {}, time(run.scheduledFor)),
      h("td", {}, run.description),
      h("td", {}, badge(run.state, STATES[run.state] ?? "")),
      h("td", {}, run.error ?? ""),
    );
  return [
    heading("Schedules", h("span", { class: "muted" }, plural(page.actions.length, "action"))),
    h("ul", { class: "cards" }, page.actions.map(card)),
    h(
      "section",
      { class: "recent" },
      h("h2", {}, "Last runs"),
      runs.runs.length
        ? h("table", {}, h("tbody", {}, runs.runs.map(row)))
        : h("p", { class: "muted" }, "Nothing has run yet."),
    ),
    sameAs("clankers-ctl schedule list"),
  ];
}
