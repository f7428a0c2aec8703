// Graph: search first, then the neighbourhood of one entity or memory. The list beside it says the same.

import { rpc } from "../api.js";
import { badge, empty, heading, link, select, timeSlider, toggle } from "../components.js";
import { debounce, h } from "../dom.js";
import { place } from "../force.js";
import { firstLine, plural } from "../format.js";

const MAX_NODES = 80;
const MAX_EDGES = 300;
const [WIDTH, HEIGHT] = [900, 520];
const ALL = { scopes: ["*"] };

export async function render({ params, set, signal }) {
  const asOf = params.asof ? Number(params.asof) : null;
  const [found, stats] = await Promise.all([
    params.id ? null : rpc("entity.list", { query: params.find, limit: 40, ...ALL }, signal),
    rpc("memory.stats", ALL, signal),
  ]);
  const typed = debounce((value) => set({ find: value, id: "" }, { replaced: true }));
  const top = [
    heading("Graph"),
    h(
      "div",
      { class: "toolbar" },
      h("input", {
        type: "search",
        "aria-label": "Find an entity",
        placeholder: "Find an entity …",
        value: params.find ?? "",
        oninput: (event) => typed(event.target.value),
      }),
      select(
        "up to",
        params.hops ?? "2",
        [
          ["1", "1 step"],
          ["2", "2 steps"],
          ["3", "3 steps"],
        ],
        (value) => set({ hops: value }),
      ),
      toggle("Show what no longer holds", params.closed !== "hide", (checked) =>
        set({ closed: checked ? "" : "hide" }),
      ),
    ),
    params.id ? timeSlider(stats.oldest, asOf, set) : null,
  ];
  if (!params.id) return [...top, choice(found.entities, params.find)];
  const graph = await rpc(
    "graph.neighbors",
    {
      id: params.id,
      hops: Number(params.hops ?? 2),
      limit: MAX_NODES,
      includeClosed: params.closed !== "hide",
      asOf,
      ...ALL,
    },
    signal,
  );
  const edges = graph.edges.slice(0, MAX_EDGES);
  const cut = graph.truncated || edges.length < graph.edges.length;
  return [
    ...top,
    h(
      "p",
      { class: "legend" },
      h("span", {}, h("span", { class: "dot entity" }), "entity"),
      h("span", {}, h("span", { class: "dot" }), "memory"),
      h("span", {}, "faded and dashed: no longer true"),
      h(
        "span",
        {},
        `${plural(graph.nodes.length, "node")}, ${plural(edges.length, "edge")}${cut ? "; there are more than are shown" : ""}`,
      ),
    ),
    h(
      "div",
      { class: "graph-layout" },
      h(
        "div",
        { class: "card graph scroll", tabindex: 0, role: "group", "aria-label": "Drawing" },
        drawing(graph.nodes, edges, set),
      ),
      list(graph.nodes, edges, params.id),
    ),
  ];
}

function choice(entities, query) {
  if (!entities.length && !query)
    return empty(
      "No entities yet",
      "Memories mention people, projects, technologies, files and errors. They appear here once there are memories.",
      'clankers-ctl memory add "We use SQLite in WAL mode"',
    );
  if (!entities.length) return empty("No entity matches", "Try a part of the name.");
  return h(
    "ul",
    { class: "rows" },
    entities.map((entity) =>
      h(
        "li",
        {},
        link(
          "graph",
          { id: entity.id },
          { class: "row", data: { row: "" } },
          h("span", { class: "title" }, entity.name),
          h("span", { class: "facts" }, h("span", {}, plural(entity.memories, "memory", "memories"))),
          h("span", { class: "badges" }, badge(entity.type)),
        ),
      ),
    ),
  );
}

const isFaded = (node) => Boolean(node.memory && node.memory.state !== "current");

function drawing(nodes, edges, set) {
  const placed = nodes.map((node) => ({ ...node }));
  place(placed, edges, WIDTH, HEIGHT);
  const byId = new Map(placed.map((node) => [node.id, node]));
  const lines = edges.flatMap((edge) => {
    const [a, b] = [byId.get(edge.source), byId.get(edge.target)];
    if (!a || !b) return [];
    const line = h("line", { class: `edge ${edge.closed ? "closed" : ""}`, x1: a.x, y1: a.y, x2: b.x, y2: b.y });
    const name = edge.type.toLowerCase().replaceAll("_", " ");
    const label =
      edges.length <= 40 && edge.type === edge.type.toUpperCase()
        ? h("text", { class: "edge-label", x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 - 3 }, name)
        : null;
    return [line, label].filter(Boolean);
  });
  const circles = placed.map((node, index) =>
    h(
      "g",
      {
        class: `node ${node.kind} ${index ? "" : "start"} ${isFaded(node) ? "faded" : ""}`,
        transform: `translate(${node.x.toFixed(1)} ${node.y.toFixed(1)})`,
        onclick: () => set({ id: node.id }),
      },
      h("circle", { r: node.kind === "entity" ? 9 : 7 }),
      h("text", { x: 12, y: 4 }, firstLine(node.label, 26)),
      h("title", {}, node.label),
    ),
  );
  return h(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": `Neighbourhood of ${nodes[0]?.label ?? ""}: the list beside it has the same nodes`,
    },
    lines,
    circles,
  );
}

function list(nodes, edges, start) {
  const links = (id) => edges.filter((edge) => edge.source === id || edge.target === id).length;
  const row = (node) =>
    h(
      "li",
      {},
      link(
        node.kind === "memory" ? "memory" : "graph",
        { id: node.id },
        { data: { row: "" } },
        h("span", { class: `dot ${node.kind}` }),
        firstLine(node.label, 110),
        " ",
        node.id === start ? badge("start") : null,
        isFaded(node) ? badge(node.memory.state, "warn") : null,
        h("span", { class: "muted small" }, ` ${plural(links(node.id), "link")}`),
      ),
    );
  return h(
    "nav",
    { class: "card", "aria-label": "Nodes of the graph" },
    h("h2", {}, "Nearest first"),
    h("ul", { class: "outline-list" }, nodes.map(row)),
  );
}
