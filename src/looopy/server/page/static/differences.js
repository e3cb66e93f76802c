/**
 * Two turns as rows side by side: which parts belong together, and which words differ.
 */

import {h} from "./dom.js";

const MOST_CELLS = 250_000; // of a comparison: larger ones would stop the page

/**
 * One part of a turn: a message, a call or its result, or the end.
 *
 * @typedef {{kind: string, name: string, text: string, faint?: string}} Part
 * @typedef {{then: Part | null, now: Part | null, same: boolean}} Row
 */

/**
 * Pair the parts of two turns: equal ones first, then parts of one kind between them.
 *
 * @param {Part[]} then
 * @param {Part[]} now
 * @returns {Row[]}
 */
export function paired(then, now) {
  const key = (/** @type {Part} */ one) => `${one.kind}\n${one.name}\n${one.text}`;
  const rows = /** @type {Row[]} */ ([]);
  let i = 0;
  let j = 0;
  for (const [a, b] of [...common(then.map(key), now.map(key)), [then.length, now.length]]) {
    rows.push(...gap(then.slice(i, a), now.slice(j, b)));
    if (a < then.length) rows.push({then: then[a], now: now[b], same: true});
    i = a + 1;
    j = b + 1;
  }
  return rows;
}

/** @param {Part[]} then @param {Part[]} now @returns {Row[]} */
function gap(then, now) {
  const rows = /** @type {Row[]} */ ([]);
  let j = 0;
  for (const one of then) {
    const found = now.findIndex((other, k) => k >= j && other.kind === one.kind);
    const upto = found < 0 ? j : found;
    for (; j < upto; j += 1) rows.push({then: null, now: now[j], same: false});
    rows.push({then: one, now: found < 0 ? null : now[found], same: false});
    if (found >= 0) j = found + 1;
  }
  for (; j < now.length; j += 1) rows.push({then: null, now: now[j], same: false});
  return rows;
}

/**
 * The words of a text as nodes, those marked that the other text does not have there.
 *
 * @param {string} text
 * @param {string} other
 * @returns {(Node | string)[]}
 */
export function marked(text, other) {
  const split = (/** @type {string} */ one) =>
    one.match(/\s+|[^\s\p{L}\p{N}]|[\p{L}\p{N}_]+/gu) ?? [];
  const mine = split(text);
  const kept = new Set(common(mine, split(other)).map(([i]) => i));
  const made = /** @type {(Node | string)[]} */ ([]);
  for (let i = 0; i < mine.length;) {
    const same = kept.has(i);
    let end = i;
    while (end < mine.length && kept.has(end) === same) end += 1;
    const run = mine.slice(i, end).join("");
    made.push(same || !run.trim() ? run : h("mark", {}, run));
    i = end;
  }
  return made;
}

/**
 * The places of a longest common subsequence; only equal ends if there are too many.
 *
 * @param {string[]} one
 * @param {string[]} other
 * @returns {[number, number][]}
 */
function common(one, other) {
  const found = /** @type {[number, number][]} */ ([]);
  let first = 0;
  while (first < one.length && first < other.length && one[first] === other[first]) {
    found.push([first, first]);
    first += 1;
  }
  let a = one.length;
  let b = other.length;
  const ends = /** @type {[number, number][]} */ ([]);
  while (a > first && b > first && one[a - 1] === other[b - 1]) ends.push([(a -= 1), (b -= 1)]);
  const wide = b - first + 1;
  if ((a - first) * (b - first) > MOST_CELLS) return [...found, ...ends.reverse()];
  const best = new Uint32Array((a - first + 1) * wide);
  const at = (/** @type {number} */ i, /** @type {number} */ j) => (i - first) * wide + j - first;
  for (let i = a - 1; i >= first; i -= 1) {
    for (let j = b - 1; j >= first; j -= 1) {
      best[at(i, j)] =
        one[i] === other[j]
          ? best[at(i + 1, j + 1)] + 1
          : Math.max(best[at(i + 1, j)], best[at(i, j + 1)]);
    }
  }
  for (let i = first, j = first; i < a && j < b;) {
    if (one[i] === other[j]) found.push([i++, j++]);
    else if (best[at(i + 1, j)] >= best[at(i, j + 1)]) i += 1;
    else j += 1;
  }
  return [...found, ...ends.reverse()];
}
