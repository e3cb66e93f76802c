/**
 * Calls in conversations of others that wait for this person's decision.
 *
 * The server shows the request alone: the conversation stays one that this person cannot open.
 */

import {at, call, get} from "./api.js";
import {announce, fill, h} from "./dom.js";
import {requestCard} from "./requests.js";
import {counted} from "./text.js";

const EVERY_MS = 8000;
const MOST = 100; // cards that are shown

export class Others {
  /** @param {{problem: (error: unknown) => void}} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {Map<string, HTMLElement>} by the request: a card keeps what was typed in it */
    this.cards = new Map();
    this.link = h("a", {class: "others", href: "#/requests", hidden: true});
    this.empty = h("p", {class: "empty", role: "status"}, "Nothing waits for your decision.");
    this.list = h("div", {class: "others-cards"});
    this.element = h(
      "section",
      {class: "scroller others-view", "aria-labelledby": "others-title"},
      h("a", {class: "back", href: "#/", "aria-label": "Conversations"}, "‹"),
      h("h2", {id: "others-title", tabindex: -1}, "Waits for your decision"),
      h("p", {class: "faint"}, "Calls of others. You see what would run, and not why."),
      this.empty,
      this.list,
    );
    setInterval(() => {
      if (this.link.isConnected && !document.hidden) this.load().catch(() => {});
    }, EVERY_MS);
  }

  /** Read the requests again. */
  async load() {
    const items = [];
    let next = "";
    do {
      const page = await get(`requests${next && `?after=${encodeURIComponent(next)}`}`);
      items.push(...page.items);
      next = page.next ?? "";
    } while (next && items.length < MOST);
    const shown = items.slice(0, MOST);
    const names = new Set(shown.map(nameOf));
    for (const [name, card] of this.cards) {
      if (names.has(name)) continue;
      card.remove();
      this.cards.delete(name);
    }
    for (const item of shown) {
      if (this.cards.has(nameOf(item))) continue;
      const card = this.card(item);
      this.cards.set(nameOf(item), card);
      this.list.append(card);
    }
    this.empty.hidden = shown.length > 0;
    this.link.hidden = shown.length === 0;
    const text = `${counted(shown.length, "call")} of others to decide`;
    if (this.link.textContent !== text) fill(this.link, text);
  }

  /** @param {any} item */
  card(item) {
    const decide = async (/** @type {Record<string, unknown>} */ inputs) => {
      const answer = inputs[item.request_id];
      const said = {request_id: item.request_id, answer};
      if (answer !== undefined) {
        const {event} = await call("POST", at(item.context_id, "/decisions"), said);
        announce(`${item.tool_name} was ${event.decision}`);
      }
      await this.load();
    };
    const card = requestCard({...item, kind: "approval"}, decide);
    const whose = item.owner ? `For ${item.owner}, in ${item.context_id}` : item.context_id;
    card.querySelector("header")?.append(h("span", {class: "faint", dir: "auto"}, whose));
    return card;
  }
}

/** @param {any} item */
function nameOf(item) {
  return JSON.stringify([item.context_id, item.request_id]);
}
