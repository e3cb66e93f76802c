/**
 * Markdown as elements: the part of it that models write, and nothing that could act.
 *
 * HTML stays text, a picture becomes a link, and a link leads to http, https or mailto. Every search
 * for the end of a mark goes forward once, so a hostile text costs no more than a long one.
 */

import {h} from "./dom.js";

/** @typedef {(from: number, to: number, node: import("./dom.js").Child) => number} Take */

const LONGEST = 100_000;
const DEEPEST = 6;
const ITEM = /^( {0,12})(?:([-*+])|(\d{1,9})[.)])(?: +|$)/;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})(?:\s|$)/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const DIVIDER = /^ {0,3}\|? *:?-+:? *(?:\| *:?-+:? *)*(?:\| *)?$/;
const ADDRESS = /(?:https?:\/\/|mailto:)[^\s<>"'`]{1,2000}/y;
const LEADS = /^(?:https?:\/\/|mailto:)./i;
const ESCAPED = /[!-/:-@[-`{-~]/;

/**
 * The elements of a text.
 *
 * @param {string} text
 * @returns {Node[]}
 */
export function markdown(text) {
  if (text.length > LONGEST) return [h("p", {class: "plain"}, text)];
  return blocks(text.split("\n"), 0);
}

/** @param {string[]} lines @param {number} depth @returns {Node[]} */
function blocks(lines, depth) {
  const made = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (!line.trim()) {
      i += 1;
    } else if (fence) {
      const end = fenceEnd(lines, i + 1, fence[1]);
      made.push(code(lines.slice(i + 1, end).join("\n"), fence[2]));
      i = end + 1;
    } else if (heading) {
      const words = line.slice(heading[0].length).replace(/\s#+\s*$/, "");
      made.push(h(`h${Math.min(6, heading[1].length + 3)}`, {}, inline(words, 0)));
      i += 1;
    } else if (RULE.test(line)) {
      made.push(h("hr"));
      i += 1;
    } else if (depth < DEEPEST && /^ {0,3}>/.test(line)) {
      let end = i;
      while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
      const inner = lines.slice(i, end).map((one) => one.replace(/^ {0,3}> ?/, ""));
      made.push(h("blockquote", {}, blocks(inner, depth + 1)));
      i = end;
    } else if (depth < DEEPEST && ITEM.test(line)) {
      const [list, end] = listOf(lines, i, depth);
      made.push(list);
      i = end;
    } else if (line.includes("|") && DIVIDER.test(lines[i + 1] ?? "")) {
      let end = i + 2;
      while (end < lines.length && lines[end].includes("|")) end += 1;
      made.push(table(lines[i], lines.slice(i + 2, end)));
      i = end;
    } else {
      let end = i + 1;
      while (end < lines.length && !begins(lines[end])) end += 1;
      made.push(h("p", {}, inline(lines.slice(i, end).join("\n"), 0)));
      i = end;
    }
  }
  return made;
}

/** True if a line ends the paragraph before it. @param {string} line */
function begins(line) {
  const starts = FENCE.test(line) || HEADING.test(line) || RULE.test(line);
  return !line.trim() || starts || ITEM.test(line) || /^ {0,3}>/.test(line);
}

/** @param {string[]} lines @param {number} from @param {string} mark */
function fenceEnd(lines, from, mark) {
  for (let i = from; i < lines.length; i += 1) {
    const line = lines[i].trim();
    if (line.startsWith(mark) && !line.replaceAll(mark[0], "")) return i;
  }
  return lines.length;
}

/** @param {string[]} lines @param {number} from @param {number} depth @returns {[Node, number]} */
function listOf(lines, from, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[from]));
  const numbered = first[3] !== undefined;
  const items = [];
  let i = from;
  while (i < lines.length) {
    const item = ITEM.exec(lines[i]);
    if (!item || item[1].length !== first[1].length || (item[3] !== undefined) !== numbered) break;
    if (RULE.test(lines[i])) break;
    const width = item[0].length;
    const inner = [lines[i].slice(width)];
    for (i += 1; i < lines.length; i += 1) {
      const indent = lines[i].search(/\S/);
      if (indent < 0 && (lines[i + 1] ?? "").search(/\S/) <= first[1].length) break;
      if (indent >= 0 && indent <= first[1].length && begins(lines[i])) break;
      inner.push(lines[i].slice(Math.min(width, Math.max(0, indent))));
    }
    items.push(h("li", {}, loosened(blocks(inner, depth + 1))));
    while (i < lines.length && !lines[i].trim() && ITEM.test(lines[i + 1] ?? "")) i += 1;
  }
  const start = numbered && first[3] !== "1" ? first[3] : null;
  return [h(numbered ? "ol" : "ul", {start}, items), i];
}

/** An item that is one paragraph, without the paragraph. @param {Node[]} made */
function loosened(made) {
  const first = made[0];
  if (!(first instanceof HTMLParagraphElement)) return made;
  return [...first.childNodes, ...made.slice(1)];
}

/** @param {string} head @param {string[]} rows */
function table(head, rows) {
  const names = cells(head);
  const row = (/** @type {string} */ line) =>
    h(
      "tr",
      {},
      cells(line)
        .slice(0, names.length)
        .map((one) => h("td", {}, inline(one, 0))),
    );
  return h(
    "div",
    {class: "scroll", tabindex: 0, role: "group", "aria-label": "Table"},
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          names.map((one) => h("th", {}, inline(one, 0))),
        ),
      ),
      h("tbody", {}, rows.map(row)),
    ),
  );
}

/** @param {string} line */
function cells(line) {
  return line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((one) => one.trim());
}

/**
 * A block of code with a button that copies it.
 *
 * @param {string} text
 * @param {string} [language]
 * @returns {HTMLElement}
 */
export function code(text, language = "") {
  const copy = h("button", {type: "button", class: "quiet small", onclick: put}, "Copy");
  async function put() {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  }
  return h(
    "figure",
    {class: "code"},
    h("figcaption", {}, h("span", {}, language || "text"), navigator.clipboard ? copy : null),
    h("pre", {tabindex: 0}, h("code", {}, text)),
  );
}

/** @param {string} text @param {number} depth @returns {import("./dom.js").Child[]} */
function inline(text, depth) {
  const made = /** @type {import("./dom.js").Child[]} */ ([]);
  const lost = new Set(); // marks that have no end after the place that was searched
  let plain = 0;
  /** @type {Take} */
  const take = (from, to, node) => {
    if (from > plain) made.push(text.slice(plain, from));
    made.push(node);
    plain = to;
    return to;
  };
  const ending = (/** @type {string} */ mark, /** @type {number} */ from) => {
    if (lost.has(mark)) return -1;
    const found = text.indexOf(mark, from);
    if (found < 0) lost.add(mark);
    return found;
  };
  for (let i = 0; i < text.length;) {
    const one = text[i];
    if (one === "\\" && ESCAPED.test(text[i + 1] ?? "")) {
      i = take(i, i + 2, text[i + 1]);
    } else if (one === "`") {
      let ticks = 1;
      while (text[i + ticks] === "`") ticks += 1;
      const end = ending("`".repeat(ticks), i + ticks);
      i = end < 0 ? i + ticks : take(i, end + ticks, h("code", {}, text.slice(i + ticks, end)));
    } else if (depth < DEEPEST && (one === "*" || one === "_" || one === "~")) {
      i = emphasised(text, i, depth, take, ending);
    } else if (one === "[" || (one === "!" && text[i + 1] === "[")) {
      i = linked(text, i, depth, take);
    } else if (one === "h" || one === "m") {
      ADDRESS.lastIndex = i;
      const found = /\w/.test(text[i - 1] ?? "") ? null : ADDRESS.exec(text);
      const address = found ? withoutEnd(found[0]) : "";
      i = LEADS.test(address) ? take(i, i + address.length, link(address, [address])) : i + 1;
    } else {
      i += 1;
    }
  }
  if (plain < text.length) made.push(text.slice(plain));
  return made;
}

/** An address without what ends the sentence around it. @param {string} address */
function withoutEnd(address) {
  let end = address.length;
  while (".,;:!?)]".includes(address[end - 1])) end -= 1;
  return address.slice(0, end);
}

/**
 * @param {string} text @param {number} i @param {number} depth
 * @param {Take} take
 * @param {(mark: string, from: number) => number} ending
 */
function emphasised(text, i, depth, take, ending) {
  const one = text[i];
  const double = text[i + 1] === one;
  const mark = double ? one + one : one;
  const from = i + mark.length;
  const inWord = one === "_" && /\w/.test(text[i - 1] ?? "");
  if ((one === "~" && !double) || inWord || /\s/.test(text[from] ?? " ")) return from;
  const end = ending(mark, from + 1);
  if (end < 0 || /\s/.test(text[end - 1])) return from;
  if (one === "_" && /\w/.test(text[end + mark.length] ?? "")) return from;
  const tag = one === "~" ? "s" : double ? "strong" : "em";
  return take(i, end + mark.length, h(tag, {}, inline(text.slice(from, end), depth + 1)));
}

/**
 * @param {string} text @param {number} i @param {number} depth
 * @param {Take} take
 */
function linked(text, i, depth, take) {
  const from = text.indexOf("[", i) + 1;
  const near = text.slice(from, from + 2500);
  const middle = near.indexOf("](");
  const end = middle < 0 ? -1 : near.indexOf(")", middle);
  if (end < 0 || near.slice(0, middle).includes("\n")) return from;
  const address = near
    .slice(middle + 2, end)
    .trim()
    .split(/\s/)[0];
  const words = near.slice(0, middle) || address;
  if (!LEADS.test(address) || depth >= DEEPEST) return from;
  return take(i, from + end + 1, link(address, inline(words, DEEPEST)));
}

/** @param {string} address @param {import("./dom.js").Child[]} words */
function link(address, words) {
  const props = {href: address, title: address, target: "_blank", rel: "noopener noreferrer"};
  return h("a", props, words);
}
