// Builds elements. Text is always a text node: nothing stored is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "line", "circle", "path", "text", "title"]);

/** Create an element; `props` are attributes, `on…` listeners, a `class`, a `style` object and `data…` values. */
export function h(tag, props, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value" || name === "checked" || name === "indeterminate") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** Return a search snippet as nodes: what is between « and » is marked. */
export function marked(text) {
  const parts = [];
  let rest = text;
  while (rest) {
    const start = rest.indexOf("«");
    const end = start < 0 ? -1 : rest.indexOf("»", start);
    if (end < 0) break;
    parts.push(rest.slice(0, start), h("mark", {}, rest.slice(start + 1, end)));
    rest = rest.slice(end + 1);
  }
  return [...parts, rest];
}

/** Call a function after typing has paused. */
export function debounce(call, milliseconds = 160) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
}
