// Health: the index, watched files, jobs, and the checks of the doctor.

import { change, finished, rpc } from "../api.js";
import { attempt, badge, confirm, errorBox, heading, loading, notice, sameAs, time } from "../components.js";
import { h, replace } from "../dom.js";
import { bytes, moment, number } from "../format.js";

export async function render({ refresh, signal }) {
  const [index, status, jobs] = await Promise.all([
    rpc("index.status", {}, signal),
    rpc("daemon.status", {}, signal),
    rpc("job.list", { limit: 12 }, signal),
  ]);
  const again = refresh;
  const sync = async () =>
    (await attempt(() => change("index.sync", {}))) && (notice("The index matches the watched files."), again());
  const results = h("div", { role: "status" });
  return [
    heading("Health", status.ok ? badge("ok", "good") : badge("problem", "bad")),
    status.problem && h("p", { class: "hint warn" }, status.problem),
    h(
      "div",
      { class: "toolbar" },
      h("button", { type: "button", onclick: () => diagnose("doctor.check", "Checking", results) }, "Run all checks"),
      h("button", { type: "button", onclick: () => backUp(again) }, "Back up now"),
      h("button", { type: "button", onclick: sync }, "Synchronise watched files"),
    ),
    results,
    h("div", { class: "columns" }, indexCard(index), filesCard(index.files), storeCard(status), jobsCard(jobs)),
    sameAs("clankers-ctl doctor"),
  ];
}

/** Run the checks, or the repairs, and list the findings. */
async function diagnose(method, label, results) {
  replace(results, loading(label));
  try {
    const { jobId } = await change(method, {});
    const diagnosis = await finished(jobId);
    const kinds = { ok: "good", problem: "bad" };
    const row = (one) =>
      h(
        "li",
        { class: kinds[one.state] ?? "" },
        h("strong", {}, one.name),
        ` ${one.finding}`,
        one.advice && h("span", { class: "muted" }, ` ${one.advice}`),
      );
    replace(
      results,
      diagnosis.repaired.map((one) => h("p", { class: "hint" }, `Repaired: ${one}`)),
      h("ul", { class: "attention" }, diagnosis.checks.map(row)),
      diagnosis.checks.some((one) => one.state !== "ok") &&
        h("button", { type: "button", onclick: () => repair(results) }, "Repair what can be rebuilt"),
    );
  } catch (error) {
    replace(
      results,
      errorBox(error, () => diagnose(method, label, results)),
    );
  }
}

async function repair(results) {
  const text = "Indexes and other derived data that are wrong are built again. Captured data is never changed.";
  if (await confirm("Repair?", text, "Repair")) await diagnose("doctor.repair", "Repairing", results);
}

async function backUp(again) {
  const text = "A verified copy of the database is stored beside the daily backups.";
  if (!(await confirm("Make a backup now?", text, "Back up"))) return;
  notice("The backup is being made.");
  const make = async () => {
    const made = await finished((await change("backup.create", {})).jobId);
    notice(`Backed up: ${made.file}, ${bytes(made.bytes)}, verified.`);
  };
  await attempt(make);
  again();
}

const rows = (pairs) =>
  h(
    "table",
    {},
    h(
      "tbody",
      {},
      pairs.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value))),
    ),
  );

function indexCard(index) {
  const live = index.live ?? {};
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Index"),
    rows([
      ["Vector search", index.vectors],
      ["Model", live.model ? `${live.provider} ${live.model}` : "none"],
      ["Vectors", number(live.vectors)],
      ["Pending", number((index.backlog ?? 0) + (live.pending ?? 0))],
      ["Failed", number(live.failed)],
      ...Object.entries(index.chunks).map(([source, count]) => [`Chunks of ${source}`, number(count)]),
      ["Last error", index.lastError ?? "none"],
    ]),
    index.building &&
      h("p", { class: "hint" }, `A new index is being built: ${number(index.building.pending)} chunks to go.`),
  );
}

function filesCard(files) {
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Watched files"),
    rows([
      ["Mode", files.mode],
      ["Files", number(files.files)],
      ["Last synchronised", files.lastSync ? moment(files.lastSync) : "never"],
      ["State", files.problem ?? (files.dirty ? "changes are waiting" : "up to date")],
    ]),
    h(
      "ul",
      { class: "outline-list" },
      files.watched.map((path) => h("li", { class: "path" }, path)),
    ),
  );
}

const capitalized = (text) => text[0].toUpperCase() + text.slice(1);

function storeCard(status) {
  const counts = Object.entries(status.counts).map(([name, count]) => [capitalized(name.replaceAll("_", " ")), number(count)]);
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Store"),
    rows([
      ["Database", status.sizes ? bytes(status.sizes.database) : "unknown"],
      ["Write-ahead log", status.sizes ? bytes(status.sizes.wal) : "unknown"],
      ["Free", status.sizes ? bytes(status.sizes.free) : "unknown"],
      ["Schema", number(status.schemaVersion)],
      ["Place", h("span", { class: "path" }, status.dbPath)],
      ...counts,
    ]),
  );
}

function jobsCard(jobs) {
  const kinds = { done: "good", failed: "bad", running: "warn" };
  const row = (job) =>
    h(
      "tr",
      {},
      h("td", {}, time(job.createdAt)),
      h("td", {}, job.kind),
      h("td", {}, badge(job.state, kinds[job.state] ?? "")),
      h("td", {}, job.error ?? job.note ?? ""),
    );
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Jobs"),
    jobs.length ? h("table", {}, h("tbody", {}, jobs.map(row))) : h("p", { class: "muted" }, "No job has run yet."),
  );
}
