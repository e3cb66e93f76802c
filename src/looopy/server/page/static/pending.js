/**
 * The cards of the requests that a conversation waits for. They keep what was typed into one while
 * another one is answered.
 */

import {fill, h} from "./dom.js";
import {requestCard} from "./requests.js";
import {pretty} from "./text.js";

export class Pending {
  /** @param {(request: any, inputs: Record<string, unknown>) => Promise<void>} answer */
  constructor(answer) {
    this.answer = answer;
    this.element = h("div", {class: "requests"});
    this.shown = "";
    /** By request, also while a turn runs between two answers. @type {Map<string, {is: string, card: HTMLElement}>} */
    this.cards = new Map();
    /** The field in which a person typed, or null. @type {HTMLElement | null} */
    this.typing = null;
  }

  /** @param {any[]} requests that wait now @returns {boolean} true if they are others than before */
  show(requests) {
    const ids = requests.map((one) => one.request_id);
    if (ids.join("\n") === this.shown) return false;
    this.shown = ids.join("\n");
    const active = /** @type {HTMLElement | null} */ (document.activeElement);
    if (this.element.contains(active)) this.typing = active;
    fill(
      this.element,
      requests.map((one) => this.card(one)),
    );
    if (this.element.contains(this.typing) && document.activeElement === document.body)
      this.typing?.focus();
    if (!ids.length) return true; // the others come again when the turn ends
    this.typing = null;
    for (const id of this.cards.keys()) if (!ids.includes(id)) this.cards.delete(id);
    return true;
  }

  /** @param {any} request */
  card(request) {
    const is = pretty(request);
    const known = this.cards.get(request.request_id);
    if (known?.is === is && !known.card.querySelector("button:disabled")) return known.card;
    const card = requestCard(request, (inputs) => this.answer(request, inputs));
    this.cards.set(request.request_id, {is, card});
    return card;
  }
}
