/**
 * A person's budget of a day and of a month: what is used, and what is reserved.
 *
 * It is small below the list of conversations, and above the usage of one. Each bar also shows its
 * figures in words.
 */

import {get} from "./api.js";
import {fill, h, svg} from "./dom.js";
import {count} from "./text.js";

const PERIODS = /** @type {Record<string, string>} */ ({day: "Today", month: "This month"});
const NEAR = 0.9; // the share of a limit from which on it is a warning
const PAUSE_MS = 1000; // between two requests

/**
 * One limit, or one sum without a limit.
 *
 * @typedef {{name: string, unit: "tokens" | "cost_usd", used: number | null, isWhole: boolean,
 *   held: number, isHeldWhole: boolean, limit: number | null, until: string}} Line
 */

let made = 0; // bars so far: each has a pattern of its own

/** @param {any[]} items of `GET /budget` @returns {Line[]} */
function linesOf(items) {
  return items.flatMap((item) => {
    const line = (/** @type {"tokens" | "cost_usd"} */ unit) => ({
      name: PERIODS[item.period] ?? item.period,
      unit,
      used: item[unit],
      isWhole: unit === "tokens" || item.cost_complete,
      held: item[`reserved_${unit}`] ?? 0,
      isHeldWhole: unit === "tokens" || item.reserved_cost_complete,
      limit: item[`limit_${unit}`],
      until: item.until,
    });
    const both = [line("tokens"), line("cost_usd")];
    const limited = both.filter((one) => one.limit !== null);
    return limited.length ? limited : [both[0]];
  });
}

/** The share of a limit that is used or reserved. @param {Line} line */
function share(line) {
  const taken = (line.used ?? 0) + line.held;
  return line.limit ? taken / line.limit : taken > 0 || line.limit === 0 ? 1 : 0;
}

/** @param {Line} line @param {number | null} value @param {boolean} [isWhole] @returns {string} */
function amount(line, value, isWhole = true) {
  if (value === null || (!isWhole && !value)) return "an unknown cost";
  if (!isWhole) return `${amount(line, value)} + unknown`;
  if (line.unit === "tokens") return count(value);
  return `$${value > 0 && value < 0.01 ? value.toPrecision(2) : value.toFixed(2)}`;
}

/** Such as "2,012 of 5,000 tokens". @param {Line} line */
function usedText(line) {
  const used = amount(line, line.used, line.isWhole);
  const of = line.limit === null ? "" : ` of ${amount(line, line.limit)}`;
  return `${used}${of}${line.unit === "tokens" ? " tokens" : ""}`;
}

/** What is reserved, and what is left. @param {Line} line @returns {string[]} */
function restOf(line) {
  const some = line.held || !line.isHeldWhole;
  const held = some ? [`${amount(line, line.held, line.isHeldWhole)} reserved`] : [];
  if (line.limit === null) return [...held, "no limit"];
  const left = line.limit - (line.used ?? 0) - line.held;
  return [...held, left > 0 ? `${amount(line, left)} left` : "used up"];
}

/** @param {Line} line @param {string} [about] in the place of the facts beside it */
function bar(line, about) {
  const whole = Math.max(line.limit ?? 0, (line.used ?? 0) + line.held) || 1;
  const used = (100 * (line.used ?? 0)) / whole;
  const held = (100 * line.held) / whole;
  const said = about ?? `${line.name}: ${[usedText(line), ...restOf(line)].join(", ")}`;
  const id = `budget-held-${(made += 1)}`;
  return svg(
    "svg",
    {class: "budget-bar", width: "100%", height: 10, role: "img", "aria-label": said},
    svg("defs", {}, hatch(id)),
    svg("rect", {class: "room", width: "100%", height: 10, rx: 5}),
    svg("rect", {x: `${used}%`, width: `${held}%`, height: 10, fill: `url(#${id})`}),
    svg("rect", {class: share(line) >= 1 ? "used up" : "used", width: `${used}%`, height: 10}),
  );
}

/** @param {string} id */
function hatch(id) {
  const line = svg("path", {d: "M-2 7 L7 -2 M1 10 L10 1", class: "held"});
  return svg("pattern", {id, width: 5, height: 5, patternUnits: "userSpaceOnUse"}, line);
}

/** @param {Line} line */
function row(line) {
  const until = new Date(line.until);
  const day = until.toLocaleDateString("en-GB", {day: "numeric", month: "short"});
  const clock = until.toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit"});
  const renews = h("time", {datetime: line.until}, `${day}, ${clock}`);
  return h(
    "li",
    {},
    h(
      "div",
      {},
      h("span", {class: "budget-name"}, line.name),
      h("span", {class: "number"}, usedText(line)),
    ),
    line.limit === null ? null : bar(line),
    h(
      "div",
      {class: "faint"},
      h("span", {}, restOf(line).join(" · ")),
      h("span", {class: "number"}, "renews ", renews),
    ),
  );
}

/** The bars of all limits, with a legend. @param {Line[]} lines */
function bars(lines) {
  const keys = [
    ["used", "used"],
    ["held", "reserved for calls that run"],
  ];
  return [
    h("ul", {class: "budget-rows"}, lines.map(row)),
    lines.some((one) => one.limit !== null)
      ? h(
          "div",
          {class: "legend"},
          keys.map(([kind, text]) => h("span", {}, h("i", {class: `key budget-${kind}`}), text)),
        )
      : null,
  ];
}

/**
 * The budget above the usage of a conversation; `null` if there is none.
 *
 * @param {string} id the conversation whose agent has the limits
 */
export async function budgetFigure(id) {
  const lines = linesOf((await get(`budget?context_id=${encodeURIComponent(id)}`)).items);
  if (!lines.length) return null;
  return h(
    "figure",
    {class: "plot"},
    h("figcaption", {}, "Your budget, of all conversations"),
    bars(lines),
  );
}

/** The budget below the list of conversations: one bar, and all of them when it is opened. */
export class Budget {
  constructor() {
    this.brief = h("summary", {});
    this.rows = h("div", {class: "budget-body"});
    this.element = h("details", {class: "budget", hidden: true}, this.brief, this.rows);
    this.element.addEventListener("toggle", () => this.element.open && this.load(this.id));
    document.addEventListener("visibilitychange", () => document.hidden || this.load(this.id));
    this.id = "";
    this.last = "";
    this.loading = false;
    this.again = false;
  }

  /**
   * Read it again, soon; what fails is shown as it was before.
   *
   * @param {string} id the conversation whose agent has the limits; empty: the last active one
   */
  async load(id) {
    this.id = id;
    this.again = this.loading;
    if (this.loading) return;
    this.loading = true;
    try {
      const about = id ? `?context_id=${encodeURIComponent(id)}` : "";
      this.draw((await get(`budget${about}`)).items);
    } catch {
      // the page shows elsewhere that the server is away
    }
    setTimeout(() => {
      this.loading = false;
      if (this.again) void this.load(this.id);
    }, PAUSE_MS);
  }

  /** @param {any[]} items */
  draw(items) {
    const text = JSON.stringify(items);
    if (text === this.last) return;
    this.last = text;
    const lines = linesOf(items);
    this.element.hidden = !lines.length;
    if (!lines.length) return;
    const limited = lines.filter((one) => one.limit !== null);
    const tightest = [...limited].sort((a, b) => share(b) - share(a))[0] ?? lines[0];
    const percent = Math.floor(100 * share(tightest));
    const when = tightest.name === PERIODS.day ? "today" : "this month";
    const said =
      tightest.limit === null
        ? `${usedText(tightest)} ${when}`
        : share(tightest) >= 1
          ? `used up ${when}`
          : `${percent} % ${when}`;
    const isNear = tightest.limit !== null && share(tightest) >= NEAR;
    fill(
      this.brief,
      h("span", {class: "budget-name"}, "Your budget"),
      h("span", {class: isNear ? "warn" : "faint"}, said),
      tightest.limit === null ? null : bar(tightest, `${usedText(tightest)} used`),
    );
    fill(this.rows, bars(lines));
  }
}
