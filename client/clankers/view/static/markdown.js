// Markdown as elements. It builds nodes from text and never parses HTML, so nothing stored can become markup.

import { h } from "./dom.js";

const MAX_CHARACTERS = 64_000;
const INLINE =
  /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]+?\S)\*\*|__(?=\S)([\s\S]+?\S)__|(?<![\w*])\*(?=[^\s*])([^*\n]*?[^\s*])\*(?![\w*])|(?<!\w)_(?=[^\s_])([^_\n]*?[^\s_])_(?!\w)|~~(?=\S)([\s\S]+?\S)~~|!?\[([^\]\n]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+"[^"\n]*")?\)|(https?:\/\/[^\s<>()"'`]+[^\s<>()"'`.,;:!?])/g;

/** Return the elements of a Markdown text. A very long text is shown as it is. */
export function markdown(text) {
  if (text.length > MAX_CHARACTERS) return h("pre", { class: "plain" }, text);
  return h("div", { class: "md" }, blocks(text.replaceAll("\r\n", "\n").split("\n")));
}

/** Return inline Markdown as nodes: code, emphasis, links to http and https, and nothing else. */
export function inline(text) {
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > last) nodes.push(text.slice(last, found.index));
    nodes.push(inlineNode(found));
    last = found.index + found[0].length;
  }
  nodes.push(text.slice(last));
  return nodes;
}

function inlineNode([all, , code, bold, bold2, italic, italic2, struck, label, target, bare]) {
  if (code !== undefined) return h("code", {}, code.trim() || code);
  if (bold ?? bold2) return h("strong", {}, inline(bold ?? bold2));
  if (italic ?? italic2) return h("em", {}, inline(italic ?? italic2));
  if (struck) return h("s", {}, inline(struck));
  if (bare) return link(bare, bare);
  return link(target, label) ?? all;
}

/** Return a link to a web page, or null for any other target, which is then shown as text. */
function link(target, label) {
  if (!/^https?:\/\//i.test(target)) return null;
  return h("a", { href: target, rel: "noopener noreferrer", target: "_blank" }, label || target);
}

function blocks(lines) {
  const out = [];
  let index = 0;
  while (index < lines.length) {
    const line = lines[index];
    const fence = line.match(/^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/);
    if (!line.trim()) index += 1;
    else if (fence) index = codeBlock(lines, index, fence, out);
    else if (/^\s{0,3}#{1,6}\s/.test(line)) {
      const [, marks, title] = line.match(/^\s*(#{1,6})\s+(.*?)\s*#*$/) ?? [null, "#", line];
      out.push(h("p", { class: `heading level-${marks.length}` }, inline(title)));
      index += 1;
    } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      out.push(h("hr"));
      index += 1;
    } else if (/^\s{0,3}>/.test(line)) index = quote(lines, index, out);
    else if (listItem(line)) index = list(lines, index, out);
    else if (line.includes("|") && /^\s*\|?\s*:?-{2,}/.test(lines[index + 1] ?? "")) index = table(lines, index, out);
    else index = paragraph(lines, index, out);
  }
  return out;
}

function codeBlock(lines, start, [, marks, language], out) {
  let end = start + 1;
  while (end < lines.length && !lines[end].trim().startsWith(marks)) end += 1;
  const code = lines.slice(start + 1, end).join("\n");
  out.push(h("pre", { class: "code", data: language ? { language } : {}, tabindex: 0 }, h("code", {}, code)));
  return end + 1;
}

function quote(lines, start, out) {
  let end = start;
  while (end < lines.length && /^\s{0,3}>/.test(lines[end])) end += 1;
  out.push(h("blockquote", {}, blocks(lines.slice(start, end).map((line) => line.replace(/^\s{0,3}>\s?/, "")))));
  return end;
}

const listItem = (line) => line.match(/^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/);

function list(lines, start, out) {
  const [, indent, bullet] = listItem(lines[start]);
  const element = h(/\d/.test(bullet) ? "ol" : "ul", /\d/.test(bullet) ? { start: parseInt(bullet, 10) } : {});
  let index = start;
  while (index < lines.length) {
    const item = listItem(lines[index]);
    if (!item || item[1].length < indent.length || item[1].length > indent.length + 1) break;
    const inner = [item[3]];
    index += 1;
    while (index < lines.length && belongs(lines, index, indent.length)) {
      inner.push(lines[index].slice(Math.min(indent.length + 2, lines[index].search(/\S|$/))));
      index += 1;
    }
    const task = inner[0].match(/^\[([ xX])\]\s+(.*)$/);
    if (task) inner[0] = `${task[1] === " " ? "☐" : "☑"} ${task[2]}`;
    const single = inner.length === 1;
    element.append(h("li", {}, single ? inline(inner[0]) : blocks(inner)));
  }
  out.push(element);
  return index;
}

/** Return whether a line continues the list item before it. */
function belongs(lines, index, indent) {
  const line = lines[index];
  if (!line.trim()) return /^\s/.test(lines[index + 1] ?? "") && (lines[index + 1] ?? "").search(/\S/) > indent;
  return line.search(/\S/) > indent + 1;
}

function table(lines, start, out) {
  const cells = (line) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split(/(?<!\\)\|/)
      .map((cell) => cell.trim());
  let end = start + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const head = h(
    "tr",
    {},
    cells(lines[start]).map((cell) => h("th", { scope: "col" }, inline(cell))),
  );
  const rows = lines.slice(start + 2, end).map((line) =>
    h(
      "tr",
      {},
      cells(line).map((cell) => h("td", {}, inline(cell))),
    ),
  );
  out.push(h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))));
  return end;
}

function paragraph(lines, start, out) {
  let end = start + 1;
  const stops = /^\s{0,3}(`{3,}|~{3,}|#{1,6}\s|>)/;
  while (end < lines.length && lines[end].trim() && !stops.test(lines[end]) && !listItem(lines[end])) end += 1;
  const parts = lines.slice(start, end).flatMap((line, at) => (at ? [h("br"), ...inline(line)] : inline(line)));
  out.push(h("p", {}, parts));
  return end;
}
