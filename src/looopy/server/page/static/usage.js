/**
 * Tokens and cost of a conversation: sums, and a plot of its turns.
 */

import {at, get} from "./api.js";
import {budgetFigure} from "./budget.js";
import {h, svg} from "./dom.js";
import {compactCount, cost, count, counted, lacksPrice} from "./text.js";

const PARTS = /** @type {const} */ ([
  ["input", "Input"],
  ["cache_read", "Input from the cache"],
  ["cache_write", "Input into the cache"],
  ["output", "Output"],
]);
const HEIGHT = 180;
const LEFT = 52;
const MOST = 2000; // turns that are read
const MOST_BARS = 120;
const MOST_ROWS = 500;

/**
 * The panel: reads the usage of a conversation.
 *
 * @param {import("./conversation.js").Conversation} conversation
 * @returns {Promise<() => import("./dom.js").Child[]>} what the panel shows then
 */
export async function readUsage(conversation) {
  const {record} = conversation;
  const turns = /** @type {any[]} */ ([]);
  let after = /** @type {number | null} */ (Math.max(0, record.turn_count - MOST));
  while (after !== null) {
    const page = /** @type {any} */ (
      await get(at(conversation.id, `/turns?after=${after}&limit=200`))
    );
    turns.push(...page.items);
    after = page.next;
  }
  const {usage} = record;
  const asked = (usage.input ?? 0) + (usage.cache_read ?? 0) + (usage.cache_write ?? 0);
  const cached = asked ? Math.round((100 * (usage.cache_read ?? 0)) / asked) : 0;
  const budget = await budgetFigure(conversation.id).catch(() => null);
  const price = cost(usage) || (lacksPrice(usage) ? "unknown" : "$0");
  const words = price.split(/(\+? ?unknown)/); // the second of them smaller
  const hidden = turns.filter((turn) => turn.hidden).length;
  const unread = record.turn_count > MOST ? "+" : "";
  const money = turns.some((turn) => turn.usage.cost?.total);
  return () => [
    budget,
    h(
      "dl",
      {class: "tiles"},
      tile("Turns", [
        count(record.turn_count),
        hidden ? h("small", {}, `\u00a0(${count(hidden)}${unread} hidden)`) : null,
      ]),
      tile("Input tokens", compactCount(asked)),
      tile("Output tokens", compactCount(usage.output ?? 0)),
      tile("From the cache", `${cached} %`),
      tile("Cost", words.map((one, i) => (i % 2 ? h("small", {}, one) : one))),
    ),
    turns.length
      ? plot("Tokens by turn", turns, tokensOf, (value) => compactCount(Math.round(value)), true)
      : null,
    money
      ? plot(
          "Cost by turn, in dollars",
          turns,
          (turn) => [["cost", turn.usage.cost?.total ?? 0]],
          (value) => cost({cost: {total: value}}),
          false,
          (turn) => lacksPrice(turn.usage),
        )
      : null,
    table(turns),
  ];
}

/** A note that earlier turns are left out. @param {any[]} turns @param {any[]} all that were read */
function lastOf(turns, all) {
  const {length} = turns;
  const last = all.at(-1)?.turn ?? 0; // they are counted from 1
  const text = `The last ${count(length)} of ${count(last)} turns.`;
  return length < last ? h("p", {class: "faint"}, text) : null;
}

/** @param {string} name @param {import("./dom.js").Child | import("./dom.js").Child[]} value */
function tile(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

/** @param {any} turn @returns {[string, number][]} */
function tokensOf(turn) {
  return PARTS.map(([name]) => [name, turn.usage[name] ?? 0]);
}

/**
 * @param {string} title
 * @param {any[]} all
 * @param {(turn: any) => [string, number][]} partsOf
 * @param {(value: number) => string} written
 * @param {boolean} legend
 * @param {(turn: any) => boolean} lacks true for a turn of which a part is unknown
 */
function plot(title, all, partsOf, written, legend, lacks = () => false) {
  const turns = all.slice(-MOST_BARS);
  const sums = turns.map((turn) => partsOf(turn).reduce((sum, [, value]) => sum + value, 0));
  const most = Math.max(...sums);
  const top = most || 1;
  const step = Math.min(48, Math.max(6, 420 / turns.length));
  const width = LEFT + Math.max(420, step * turns.length) + 8;
  const y = (/** @type {number} */ value) => HEIGHT - 24 - (value / top) * (HEIGHT - 40);
  const halved = written(most / 2) !== written(most); // not so of 0 and of 1
  const shares = [0, ...(halved ? [0.5] : []), ...(most ? [1] : [])];
  const lines = shares.map((share) => [
    svg("line", {x1: LEFT, x2: width - 8, y1: y(top * share), y2: y(top * share), class: "tick"}),
    svg(
      "text",
      {x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end", class: "tick-text"},
      share ? written(top * share) : "0",
    ),
  ]);
  const each = Math.ceil(40 / step);
  const bars = turns.map((turn, i) => {
    const x = LEFT + i * step + step * 0.12;
    let sum = 0;
    const rects = partsOf(turn).map(([name, value]) => {
      sum += value;
      const height = y(sum - value) - y(sum);
      return svg("rect", {
        x,
        y: y(sum),
        width: step * 0.76,
        height: Math.max(0, height),
        class: `part ${name}`,
      });
    });
    const said = partsOf(turn)
      .filter(([, value]) => value)
      .map(([name, value]) => `${name.replace("_", " ")} ${written(value)}`);
    const parts = [said.join(", "), lacks(turn) ? "unknown" : ""].filter(Boolean);
    const middle = {x: x + step * 0.38, "text-anchor": "middle", class: "tick-text"};
    const mark = lacks(turn) ? svg("text", {...middle, y: y(sum) - 4}, "?") : null;
    const number =
      i % each === 0 ? svg("text", {...middle, y: HEIGHT - 8}, String(turn.turn)) : null;
    const rewound = turn.hidden ? ", hidden by a rewind" : "";
    const name = svg("title", {}, `Turn ${turn.turn}${rewound}: ${parts.join(" + ") || "0"}`);
    return svg("g", {}, name, rects, mark, number);
  });
  const unknown = turns.filter(lacks).length;
  const about =
    `${title}, ${counted(turns.length, "turn")}, at most ${written(most)}` +
    (unknown ? `; unknown, at least in part: ${counted(unknown, "turn")}` : "");
  return h(
    "figure",
    {class: "plot"},
    h("figcaption", {}, title),
    lastOf(turns, all),
    h(
      "div",
      {class: "picture-scroll", tabindex: 0, role: "group", "aria-label": title},
      svg(
        "svg",
        {
          viewBox: `0 0 ${width} ${HEIGHT}`,
          width,
          height: HEIGHT,
          role: "img",
          "aria-label": about,
        },
        lines.flat(),
        bars,
      ),
    ),
    legend
      ? h(
          "div",
          {class: "legend"},
          PARTS.map(([name, text]) => h("span", {}, h("i", {class: `key part ${name}`}), text)),
        )
      : null,
    unknown ? h("div", {class: "legend"}, "? marks what is unknown, at least in part") : null,
  );
}

/** @param {any[]} all */
function table(all) {
  const turns = all.slice(-MOST_ROWS);
  const names = ["Turn", ...PARTS.map(([, text]) => text), "Cost"];
  const row = (/** @type {any} */ turn) =>
    h(
      "tr",
      {},
      h("td", {}, turn.hidden ? `${turn.turn}, hidden` : String(turn.turn)),
      PARTS.map(([name]) => h("td", {class: "number"}, count(turn.usage[name] ?? 0))),
      h("td", {class: "number"}, cost(turn.usage) || (lacksPrice(turn.usage) ? "unknown" : "–")),
    );
  const head = h(
    "tr",
    {},
    names.map((name) => h("th", {scope: "col"}, name)),
  );
  return h(
    "details",
    {class: "fold"},
    h("summary", {}, "As a table"),
    lastOf(turns, all),
    h(
      "div",
      {class: "scroll", tabindex: 0, role: "group", "aria-label": "Usage by turn"},
      h(
        "table",
        {class: "facts-table"},
        h("thead", {}, head),
        h("tbody", {}, turns.map(row)),
      ),
    ),
  );
}
