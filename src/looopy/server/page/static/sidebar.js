/**
 * The conversations: the last used first, and a search through all their messages.
 */

import {get} from "./api.js";
import {Budget} from "./budget.js";
import {fill, h} from "./dom.js";
import {when} from "./text.js";

const EVERY_MS = 4000;
const WAIT_MS = 250; // after a key, before a search begins

/** @param {any} record */
export function statusOf(record) {
  if (record.status === "busy") return "running";
  if (record.pending?.length || record.waits_for || record.needs_auth) return "waiting";
  if (record.status === "failed" || record.error) return "failed";
  if (record.interrupted_turn) return "interrupted";
  return record.left_as === "paused" ? "paused" : record.left_as ? "resting" : "ready";
}

export class Sidebar {
  /** @param {{problem: (error: unknown) => void}} actions @param {Node} others the link to them */
  constructor(actions, others) {
    this.actions = actions;
    this.current = "";
    this.count = 40;
    this.last = "";
    /** @type {Map<string, string>} */
    this.titles = new Map();
    this.input = h("input", {
      type: "search",
      id: "search",
      placeholder: "Search all messages",
      "aria-label": "Search all messages",
      autocomplete: "off",
      oninput: () => this.typed(),
    });
    this.budget = new Budget();
    this.list = h("ul", {class: "contexts"});
    this.more = h(
      "button",
      {type: "button", class: "quiet", hidden: true, onclick: () => this.longer()},
      "Show more",
    );
    this.element = h(
      "nav",
      {class: "sidebar", "aria-label": "Conversations"},
      h(
        "header",
        {},
        h(
          "h1",
          {},
          h(
            "a",
            {href: "#/"},
            h("img", {src: "ui/icon.svg", alt: "", width: 24, height: 24}),
            "looopy",
          ),
        ),
        h("a", {class: "button main", href: "#/new"}, "New"),
      ),
      h("div", {class: "search", role: "search"}, this.input),
      others,
      h("div", {class: "side-scroll"}, this.list, this.more),
      this.budget.element,
    );
    this.timer = 0;
    setInterval(() => {
      const looked = this.element.isConnected && !document.hidden;
      if (looked && !this.input.value.trim()) this.load().catch(() => {});
    }, EVERY_MS);
  }

  /** Read the list again. */
  async load() {
    const page = await get(`contexts?title=true&limit=${Math.min(200, this.count)}`);
    for (const one of page.items) this.titles.set(one.context_id, one.title || one.context_id);
    if (this.input.value.trim()) return;
    this.more.hidden = page.next === null || this.count >= 200;
    const text = JSON.stringify([page.items, this.current]);
    if (text === this.last) return;
    this.last = text;
    this.draw(
      page.items.map((/** @type {any} */ one) => this.item(one)),
      "No conversation yet.",
    );
  }

  /** @param {Node[]} items @param {string} empty */
  draw(items, empty) {
    const focused = /** @type {HTMLElement | null} */ (
      this.list.contains(document.activeElement) ? document.activeElement : null
    );
    const href = focused?.getAttribute("href");
    fill(this.list, items.length ? items : h("li", {class: "empty"}, empty));
    if (href)
      /** @type {any} */ (
        [...this.list.querySelectorAll("a")].find((one) => one.getAttribute("href") === href)
      )?.focus();
  }

  longer() {
    this.count += 80;
    this.load().catch(this.actions.problem);
  }

  /** @param {string} id */
  select(id) {
    this.current = id;
    this.load().catch(this.actions.problem);
  }

  /** @param {any} record */
  item(record) {
    const status = statusOf(record);
    const href = `#/c/${encodeURIComponent(record.context_id)}`;
    return h(
      "li",
      {},
      h(
        "a",
        {href, "aria-current": record.context_id === this.current ? "page" : null},
        h("span", {class: `dot ${status}`, role: "img", "aria-label": status}),
        h("span", {class: "title", dir: "auto"}, record.title || record.context_id),
        h("span", {class: "faint"}, status === "paused" ? "paused" : when(record.last_activity)),
        h("span", {class: "id"}, record.context_id),
      ),
    );
  }

  typed() {
    clearTimeout(this.timer);
    this.last = "";
    this.timer = setTimeout(() => this.search().catch(this.actions.problem), WAIT_MS);
  }

  async search() {
    const words = this.input.value.trim();
    if (!words) return this.load();
    const query = /[\s"*]$/.test(this.input.value) ? words : `${words}*`; // the last word is being typed
    let refused = "";
    const page = await get(`search?query=${encodeURIComponent(query)}&limit=40`).catch((error) => {
      if (error.code !== "value_refused") throw error;
      refused = error.message;
      return {items: []};
    });
    if (this.input.value.trim() !== words) return;
    this.more.hidden = true;
    this.draw(
      page.items.map((/** @type {any} */ one) => this.hit(one)),
      refused || "Nothing found.",
    );
  }

  /** @param {any} found */
  hit(found) {
    const parts = [];
    const letters = [...found.snippet]; // the server counts characters, not UTF-16
    let from = 0;
    for (const [begin, end] of found.matches) {
      parts.push(
        letters.slice(from, begin).join(""),
        h("mark", {}, letters.slice(begin, end).join("")),
      );
      from = end;
    }
    parts.push(letters.slice(from).join(""));
    const who = /** @type {Record<string, string>} */ ({
      user: "You",
      assistant: "Agent",
      toolResult: "Result",
    });
    const href = `#/c/${encodeURIComponent(found.context_id)}/at/${found.position}`;
    return h(
      "li",
      {},
      h(
        "a",
        {href},
        h(
          "span",
          {class: "title", dir: "auto"},
          this.titles.get(found.context_id) ?? found.context_id,
        ),
        h("span", {class: "faint"}, who[found.role] ?? found.role),
        h("span", {class: "snippet", dir: "auto"}, parts),
      ),
    );
  }
}
