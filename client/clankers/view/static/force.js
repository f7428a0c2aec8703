// Places the nodes of a small graph: nodes repel, edges pull, and it stops when it is cool.

const STEPS = 260;
const REPULSION = 9_000;
const SPRING = 0.02;
const LENGTH = 120;
const CENTRE_PULL = 0.012;

/** Set x and y of each node; the first stays in the middle. The result is the same for the same graph. */
export function place(nodes, edges, width, height) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  nodes.forEach((node, index) => {
    const angle = index * 2.399963; // the golden angle spreads the nodes
    const radius = index ? 40 + 16 * Math.sqrt(index) * node.hops : 0;
    Object.assign(node, {
      x: width / 2 + radius * Math.cos(angle),
      y: height / 2 + radius * Math.sin(angle),
      dx: 0,
      dy: 0,
    });
  });
  const springs = edges.map((edge) => [byId.get(edge.source), byId.get(edge.target)]).filter(([a, b]) => a && b);
  for (let step = 0; step < STEPS; step += 1) {
    const heat = 14 * (1 - step / STEPS);
    repel(nodes);
    for (const [a, b] of springs) pull(a, b);
    nodes.forEach((node, index) => {
      node.dx += (width / 2 - node.x) * CENTRE_PULL;
      node.dy += (height / 2 - node.y) * CENTRE_PULL * 1.6;
      const size = Math.hypot(node.dx, node.dy) || 1;
      if (index) {
        node.x = clamp(node.x + (node.dx / size) * Math.min(size, heat), 60, width - 60);
        node.y = clamp(node.y + (node.dy / size) * Math.min(size, heat), 24, height - 24);
      }
      node.dx = node.dy = 0;
    });
  }
  if (nodes.length > 1) fit(nodes, width, height);
}

/** Scale the placed nodes so that they fill the drawing; the labels stand to their right. */
function fit(nodes, width, height) {
  const range = (key, low, high) => {
    const values = nodes.map((node) => node[key]);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    for (const node of nodes)
      node[key] = most - least < 1 ? (low + high) / 2 : low + ((node[key] - least) / (most - least)) * (high - low);
  };
  range("x", 50, width - 210);
  range("y", 45, height - 45);
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function repel(nodes) {
  for (let i = 0; i < nodes.length; i += 1)
    for (let j = i + 1; j < nodes.length; j += 1) {
      const [a, b] = [nodes[i], nodes[j]];
      const [x, y] = [a.x - b.x || 0.1, a.y - b.y || 0.1];
      const force = REPULSION / Math.max(100, x * x + y * y);
      const size = Math.hypot(x, y);
      a.dx += (x / size) * force;
      a.dy += (y / size) * force;
      b.dx -= (x / size) * force;
      b.dy -= (y / size) * force;
    }
}

function pull(a, b) {
  const [x, y] = [b.x - a.x, b.y - a.y];
  const size = Math.hypot(x, y) || 1;
  const force = SPRING * (size - LENGTH) * 3;
  a.dx += (x / size) * force;
  a.dy += (y / size) * force;
  b.dx -= (x / size) * force;
  b.dy -= (y / size) * force;
}
