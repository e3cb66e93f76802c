/**
 * The conversation as people read it: messages, calls that fold open, what waits, ends of turns.
 */

import {Problem, at, get} from "./api.js";
import {look} from "./artifacts.js";
import {
  blocksOf,
  folded,
  json,
  plain,
  prose,
  served,
  sources,
  textIn,
  textOf,
  thinking,
  wholeOf,
} from "./blocks.js";
import {CallCard} from "./calls.js";
import {announce, confirmed, fill, h, refill} from "./dom.js";
import {markdown} from "./markdown.js";
import {Pending} from "./pending.js";
import {
  again,
  compactCount,
  cost,
  count,
  duration,
  lacksRoom,
  outcomeText,
  pretty,
  shortened,
} from "./text.js";

const CALLS_AT_ONCE = 30; // of one message
const MORE_CALLS = 200;
const REASON_CHARS = 200;
const MOST_ARTIFACTS = 8; // beside the end of a turn; the panel has all
const OVERTAKEN = ["agent_busy", "input_not_found"]; // refused, as another person was faster
const REVEALED_AT_ONCE = 200; // messages that are read on the way up to one
const MOST_REVEALED = 5000; // messages between that and what is here, which all would be shown
const FAR_UP =
  "This message is more than 5,000 messages further up. “Show earlier messages” leads there.";
const LIVE_MARKDOWN = 20_000; // characters of a growing answer that are laid out again and again

/** The log of one conversation. Its element scrolls. */
export class Chat {
  /**
   * @param {import("./conversation.js").Conversation} conversation
   * @param {{edit: (text: string, id: string) => void, problem: (error: unknown) => void}} actions
   */
  constructor(conversation, actions) {
    this.conversation = conversation;
    this.actions = actions;
    /** @type {Map<number, HTMLElement>} */
    this.shown = new Map();
    /** @type {Map<string, CallCard>} */
    this.cards = new Map();
    /** @type {Map<number, HTMLElement>} */
    this.ends = new Map();
    this.older = h(
      "button",
      {type: "button", class: "quiet older", hidden: true, onclick: () => this.back()},
      "Show earlier messages",
    );
    this.log = h("div", {class: "log", role: "log", "aria-live": "off", "aria-label": "Messages"});
    this.live = h("article", {class: "message assistant live", hidden: true});
    this.notice = h("p", {class: "notice", hidden: true});
    this.queued = h("div", {class: "queued"});
    this.requests = new Pending((request, inputs) => this.answered(request, inputs));
    this.refused = h("div", {class: "refused", role: "alert"});
    this.after = h("div", {class: "after"});
    this.newest = h(
      "button",
      {type: "button", class: "newest", hidden: true, onclick: () => this.toEnd()},
      "Newest ↓",
    );
    const column = h(
      "div",
      {class: "column"},
      this.older,
      this.log,
      this.live,
      this.queued,
      this.notice,
      this.requests.element,
      this.refused,
      this.after,
    );
    this.element = h(
      "div",
      {class: "scroller", tabindex: 0, role: "region", "aria-label": "Conversation"},
      column,
      this.newest,
    );
    this.atEnd = true;
    this.top = 0;
    this.element.addEventListener("scroll", () => this.scrolled(), {passive: true});
    const sizes = new ResizeObserver(() => this.keepEnd()); // messages are measured when they show
    sizes.observe(column);
    sizes.observe(this.element);
    this.drawing = 0;
    this.counting = 0; // the timer of the wait for the next attempt of a model call
    /** An answer that the server did not take. @type {{request: any, error: Problem} | null} */
    this.untaken = null;
    conversation.addEventListener("change", (event) =>
      this.take(/** @type {any} */ (event).detail),
    );
  }

  /** @param {{what: string, value: any}} change */
  take({what, value}) {
    if (what === "all") this.all();
    else if (what === "message") this.message(value);
    else if (what === "call") this.cards.get(value)?.update();
    else if (what === "older") this.prepend();
    else if (what === "trimmed") this.trimmed();
    else if (what === "live") this.drawLater();
    else if (what === "sent") this.toEnd();
    else if (what === "turn") this.turnEnded(value);
    else if (what === "record" || what === "listed") this.turnEnds();
    if (what === "turn" || what === "record") this.settle();
    if (["all", "call", "record", "turn"].includes(what)) this.overtaken();
    if (["all", "record", "turn"].includes(what)) this.waits();
    if (["all", "notice", "live", "connection", "record"].includes(what)) this.noticed();
    if (["all", "sent", "message", "record", "turn"].includes(what)) this.queue();
    this.keepEnd();
  }

  all() {
    this.log.replaceChildren();
    this.shown.clear();
    this.cards.clear();
    this.ends.clear();
    for (const entry of this.sorted()) this.put(entry);
    this.turnEnds();
    this.olderShown();
    this.draw();
    if (this.atEnd) this.toEnd();
  }

  sorted() {
    return [...this.conversation.entries.values()].sort((a, b) => a.position - b.position);
  }

  /** @param {import("./conversation.js").Entry} entry */
  message(entry) {
    this.put(entry);
    if (entry.message.role === "assistant") this.draw();
  }

  /** Show a message at its place. @param {import("./conversation.js").Entry} entry */
  put(entry) {
    if (this.shown.has(entry.position)) return;
    const made = this.made(entry);
    if (!made) return;
    this.shown.set(entry.position, made);
    made.dataset.position = String(entry.position);
    let before = this.log.lastElementChild;
    while (before && Number(before.dataset.position ?? 0) > entry.position) {
      before = before.previousElementSibling;
    }
    if (before) before.after(made);
    else this.log.prepend(made);
  }

  /** True if a result is here without its call. @param {import("./conversation.js").Entry} entry */
  isAlone(entry) {
    return this.conversation.keyOf(entry.message.tool_call_id, entry.position).startsWith("?");
  }

  /** @param {import("./conversation.js").Entry} entry @returns {HTMLElement | null} */
  made(entry) {
    const {message} = entry;
    const id = `message-${entry.position}`;
    if (message.role === "user") {
      const body = h(
        "div",
        {class: "bubble", dir: "auto"},
        blocksOf(message, entry, this.wholeOf(entry)),
      );
      return h("article", {class: "message user", id, "aria-label": "You"}, body);
    }
    if (message.role === "assistant") return this.answer(entry, id);
    if (message.role === "toolResult") {
      if (!this.isAlone(entry)) return null; // its call shows it
      const card = this.card({id: message.tool_call_id, name: message.tool_name}, entry);
      return h("article", {class: "message assistant", id, "aria-label": "Result"}, card.element);
    }
    const title = message.role === "summary" ? "Summary of what came before" : message.role;
    const whole = this.wholeOf(entry);
    const inside = () =>
      typeof message.content === "string"
        ? prose(entry, "/content", message.content, whole)
        : json(entry, "/content", message.content, whole);
    return h(
      "article",
      {class: "message aside", id},
      folded(title, () => [inside()]),
    );
  }

  /** @param {import("./conversation.js").Entry} entry @param {string} id */
  answer(entry, id) {
    const {message} = entry;
    const made = h("article", {class: "message assistant", id, "aria-label": "Agent"});
    const calls = /** @type {any[]} */ ([]);
    const whole = this.wholeOf(entry);
    message.content.forEach((/** @type {any} */ block, /** @type {number} */ i) => {
      if (block.type === "thinking" && block.thinking)
        made.append(thinking(() => textIn(entry, `/content/${i}/thinking`, block.thinking, whole)));
      else if (block.type === "toolCall") calls.push(block);
      else if (block.type === "serverToolCall")
        made.append(served(block, entry, `/content/${i}`, whole));
      else if (block.type === "text" && block.text) {
        made.append(prose(entry, `/content/${i}/text`, block.text, whole));
        if (block.citations?.length) made.append(sources(block.citations));
      }
    });
    if (calls.length) made.append(this.callList(calls, entry));
    if (message.error_message) made.append(h("p", {class: "error"}, message.error_message));
    return made;
  }

  /** The calls of a message: some, and a button for more. */
  callList(/** @type {any[]} */ calls, /** @type {import("./conversation.js").Entry} */ entry) {
    const list = h("div", {class: "calls"});
    let done = 0;
    const more = h("button", {type: "button", class: "quiet", onclick: () => add(MORE_CALLS)});
    const add = (/** @type {number} */ most) => {
      const next = calls.slice(done, done + most);
      const made = next.map((call) => this.card(call, entry).element);
      done += next.length;
      const left = calls.length - done;
      const shown = Math.min(left, MORE_CALLS);
      more.textContent = `Show ${count(shown)} more of ${count(left)} calls`;
      if (more.isConnected) more.before(...made);
      else list.append(...made, more);
      more.hidden = left === 0;
    };
    add(CALLS_AT_ONCE);
    return list;
  }

  /** @param {any} call @param {import("./conversation.js").Entry} entry */
  card(call, entry) {
    const card = new CallCard(call, entry, this.conversation);
    this.cards.set(card.key, card);
    return card;
  }

  /** @param {import("./conversation.js").Entry} entry */
  wholeOf(entry) {
    return wholeOf(this.conversation.id, entry.position);
  }

  // --- the answer that is being written ----------------------------------------------------------

  drawLater() {
    if (!this.drawing) this.drawing = requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.drawing);
    this.drawing = 0;
    const live = this.conversation.live;
    const busy = this.conversation.running;
    this.live.hidden = !live && !busy;
    this.live.setAttribute("aria-busy", "true");
    if (!live?.text && !live?.thinking) {
      fill(this.live, h("span", {class: "dots", role: "img", "aria-label": "The turn runs"}));
      return;
    }
    const parts = [];
    const thought = () => plain(live.thinking.slice(-LIVE_MARKDOWN));
    const fold = live.thinking ? this.live.querySelector(".thinking") : null; // it keeps the focus
    const inside = fold?.querySelector(".plain");
    if (inside) inside.replaceWith(thought());
    else if (live.thinking && !fold) parts.push(thinking(thought, !live.text));
    if (live.text.length <= LIVE_MARKDOWN)
      parts.push(h("div", {class: "prose", dir: "auto"}, markdown(live.text)));
    else {
      const length = count(live.text.length);
      parts.push(h("p", {class: "faint"}, `${length} characters so far. The last of them:`));
      parts.push(h("p", {class: "plain"}, live.text.slice(-2000)));
    }
    for (const one of [...this.live.childNodes]) if (one !== fold) one.remove();
    this.live.append(...parts);
    this.keepEnd();
  }

  noticed() {
    const {notice, record, retry} = this.conversation;
    this.notice.hidden = !notice || [record?.waits_for, record?.error].includes(notice); // told below
    clearTimeout(this.counting);
    if (!retry) return fill(this.notice, notice);
    const left = Math.max(0, retry.until - performance.now());
    const reason = h("small", {}, shortened(retry.reason, REASON_CHARS));
    fill(this.notice, `${notice} ${again(left)} `, h("br"), reason);
    if (left && !this.conversation.isClosed)
      this.counting = setTimeout(() => this.noticed(), left % 1000 || 1000);
  }

  /** Messages that no turn has taken yet: a turn that was stopped leaves them to the next one. */
  queue() {
    const {running, queued, record} = this.conversation;
    if (!running && !queued.length && !this.queued.firstChild) return;
    const send = () => this.conversation.resume().catch(this.actions.problem);
    const until = (/** @type {string} */ how) =>
      !running
        ? "Waits for the next turn"
        : how === "steer"
          ? "Before the next model call"
          : "When the turn ends";
    const made = queued.map(({message, how}) =>
      h(
        "article",
        {class: "message user", "aria-label": "You, not read yet"},
        h(
          "div",
          {class: "bubble", dir: "auto"},
          blocksOf({content: message}, {}, unclipped),
          h("small", {}, until(how)),
        ),
      ),
    );
    const now = h("button", {type: "button", class: "main", onclick: send}, "Send now");
    const waits = running || !made.length || record?.pending.length; // an answer begins the turn
    refill(this.queued, made, waits ? null : h("div", {class: "actions"}, now));
  }

  // --- ends of turns, and what waits -------------------------------------------------------------

  /** @param {any} event */
  turnEnded(event) {
    this.draw();
    this.turnEnds();
    if (!event) return;
    const answers = this.sorted().filter(({message}) => message.role === "assistant");
    const last = answers.findLast((one) => one.turn === event.turn);
    const said = last ? shortened(textOf(last.message), 500) : "";
    announce(`${said} The turn has ended: ${outcomeText(event)}`);
  }

  /** Calls that ran when the turn ended run no more. */
  settle() {
    for (const card of this.cards.values()) if (card.isOpen) card.update();
  }

  turnEnds() {
    const last = new Map();
    let after = /** @type {HTMLElement | undefined} */ (undefined);
    for (const {turn, position} of this.sorted()) {
      after = this.shown.get(position) ?? after;
      last.set(turn, {position, after});
    }
    for (const [turn, {position, after}] of last) {
      const known = this.conversation.turns.get(turn);
      if (!known?.ended_at || !after) continue;
      const made = this.turnEnd(known, position);
      const old = this.ends.get(turn);
      const isSame = old?.isEqualNode(made) && old.previousElementSibling === after;
      if (isSame) continue; // it may have the focus
      old?.remove();
      this.ends.set(turn, made);
      after.after(made);
    }
  }

  /** @param {any} turn @param {number} position */
  turnEnd(turn, position) {
    const {usage} = turn;
    const facts = [
      turn.started_at
        ? duration((Date.parse(turn.ended_at) - Date.parse(turn.started_at)) / 1000)
        : "",
      usage?.total_tokens ? `${compactCount(usage.total_tokens)} tokens` : "",
      cost(usage),
    ].filter(Boolean);
    const artifacts = this.artifactsOf(turn.turn);
    return h(
      "footer",
      {class: `turn-end ${turn.outcome}`, "data-position": position},
      artifacts.length ? h("div", {class: "saved"}, artifacts) : null,
      h("span", {class: "dot", title: outcomeText(turn)}),
      h("span", {}, `Turn ${turn.turn}: ${this.ending(turn)}`),
      h("span", {class: "faint"}, facts.join(" · ")),
      h("span", {class: "links"}, this.linksOf(turn, position)),
    );
  }

  /** What can be done with a turn. @param {any} turn @param {number} position */
  linksOf(turn, position) {
    const act = (/** @type {() => Promise<void>} */ doing) => () =>
      doing().catch(this.actions.problem);
    return [
      h(
        "a",
        {
          href: `#/c/${encodeURIComponent(this.conversation.id)}/timeline/${turn.turn}`,
          "aria-label": `Timeline of turn ${turn.turn}`,
        },
        "Timeline",
      ),
      h(
        "a",
        {
          href: `#/c/${encodeURIComponent(this.conversation.id)}/replay/${turn.turn}`,
          "aria-label": `Replay turn ${turn.turn}`,
        },
        "Replay",
      ),
      h(
        "button",
        {
          type: "button",
          class: "link",
          "aria-label": `Fork here, after turn ${turn.turn}`,
          onclick: act(() => this.fork(position)),
        },
        "Fork here",
      ),
      h(
        "button",
        {
          type: "button",
          class: "link",
          "aria-label": `Rewind to before turn ${turn.turn}`,
          onclick: act(() => this.rewind(turn.turn)),
        },
        "Rewind",
      ),
    ];
  }

  /** Buttons that show what a turn has saved. @param {number} turn */
  artifactsOf(turn) {
    const {id, artifacts} = this.conversation;
    return artifacts
      .filter((one) => one.turn === turn)
      .slice(0, MOST_ARTIFACTS)
      .map((one) => {
        const show = () => look(id, one, this.actions.problem).catch(this.actions.problem);
        const {version} = one;
        const title = `View ${one.artifact_id}`;
        return h(
          "button",
          {type: "button", class: "chip artifact", title, "data-version": version, onclick: show},
          `◆ ${shortened(one.artifact_id, 40)}`,
        );
      });
  }

  /** @param {any} turn */
  ending(turn) {
    const {record, turns} = this.conversation;
    const next = turns.get(turn.turn + 1);
    const goesOn = next?.continues === turn.turn;
    if (lacksRoom(turn)) {
      if (goesOn) return `waited for the budget, and was continued by turn ${next.turn}`;
      if (turn.turn < record.turn_count) return "waited for the budget, and was not continued";
      return `waits for ${budgetText(record.waits_for_limit)}`;
    }
    if (turn.outcome === "interrupted" && goesOn)
      return `its process ended; turn ${next.turn} continued it`;
    const asked = ["input_required", "auth_required"].includes(turn.outcome);
    return asked && goesOn ? "asked, and was answered" : outcomeText(turn);
  }

  /** @param {number} position */
  async fork(position) {
    const id = await this.conversation.fork(position);
    if (this.conversation.isClosed) return; // it is in the list
    announce("The conversation was forked; this is the new one");
    location.hash = `#/c/${encodeURIComponent(id)}`;
  }

  /** @param {number} turn */
  async rewind(turn) {
    const text = `Turn ${turn} and all after it are hidden from the model. Nothing is deleted, and you can undo it until you send a message.`;
    if (!(await confirmed(`Rewind to before turn ${turn}?`, text, "Rewind"))) return;
    const asked = this.sorted().find((one) => one.turn === turn && one.message.role === "user");
    const content = asked?.clipped ? await this.wholeOf(asked)("/content") : asked?.message.content;
    await this.conversation.rewind(turn);
    if (asked) this.actions.edit(textOf({content}), this.conversation.id);
    this.undoable = true;
    this.waits();
    this.toEnd();
  }

  /** What the conversation waits for: answers, a person to continue it, or a retry. */
  waits() {
    const {record, conversation} = {
      record: this.conversation.record,
      conversation: this.conversation,
    };
    const act = (/** @type {() => Promise<void>} */ doing) => () =>
      doing().catch(this.actions.problem);
    if (!record) return;
    const wanted = record.pending.length > 0;
    if (this.requests.show(record.pending) && wanted)
      announce(`${record.pending[0].prompt || "The agent waits for you"}`);
    this.newest.textContent = wanted ? "Waits for you ↓" : "Newest ↓";
    const parts = [];
    if (this.undoable && record.status !== "busy") {
      const undo = async () => {
        await conversation.undoRewind();
        this.undoable = false;
        this.waits();
      };
      parts.push(bar("The conversation was rewound.", "Undo", act(undo)));
    }
    if (record.status === "busy") this.undoable = false;
    if (record.interrupted_turn && record.status !== "busy" && !record.pending.length) {
      parts.push(
        bar(
          this.unfinished(record),
          "Continue",
          act(() => conversation.resume()),
          "main",
        ),
      );
    } else if (record.error && record.status === "failed") {
      parts.push(
        bar(
          `The turn failed: ${shortened(record.error, 300)}`,
          "Try again",
          act(() => conversation.resume()),
          "main",
        ),
      );
    }
    refill(this.after, parts);
    this.draw();
  }

  /** @param {any} request @param {Record<string, unknown>} inputs */
  async answered(request, inputs) {
    this.untaken = null;
    try {
      await this.conversation.answer(inputs);
    } catch (error) {
      if (error instanceof Problem && OVERTAKEN.includes(error.code))
        this.untaken = {request, error};
      throw error;
    } finally {
      this.overtaken();
    }
  }

  /** Show that an answer was not taken, if its card is gone. */
  overtaken() {
    const text = this.untaken ? this.untakenText(this.untaken.request, this.untaken.error) : "";
    if (text === (this.refused.dataset.text ?? "")) return; // it was announced
    this.refused.dataset.text = text;
    const dismiss = () => {
      this.untaken = null;
      this.overtaken();
    };
    fill(this.refused, text ? bar(text, "Dismiss", dismiss) : null);
  }

  /** @param {any} request @param {Problem} error */
  untakenText(request, error) {
    const {record, decisions} = this.conversation;
    const pending = record?.pending ?? [];
    if (pending.some((/** @type {any} */ one) => one.request_id === request.request_id)) return "";
    const lost = `Your answer for ${request.tool_name} was not taken`;
    const known = [...decisions.values()].find((one) => one.request_id === request.request_id);
    if (!known)
      return record?.status === "busy"
        ? `${lost}: ${error.message}` // it may have been about another request
        : `${lost}. Another person had answered already.`;
    if (known.decision === "expired") return `${lost}. The request had expired.`;
    const by = known.actor_id ? ` by ${known.actor_id}` : "";
    const how = `${known.args ? " with other arguments" : ""}${by}`;
    const said = known.text ? `: ${shortened(known.text, 300)}` : "";
    return `${lost}. Another person had answered already: ${known.decision}${how}${said}`;
  }

  /** Why the last turn can be continued. @param {any} record */
  unfinished(record) {
    const turn = record.interrupted_turn;
    if (record.waits_for) return `Turn ${turn} waits: ${record.waits_for}`;
    if (record.error) return `Turn ${turn} failed: ${shortened(record.error, 300)}`;
    const decided = this.conversation.turns.get(record.turn_count)?.outcome === "auth_required";
    if (record.needs_auth && decided && record.turn_count > turn)
      return `Turn ${turn} was answered. It continues with your credentials.`;
    if (record.needs_auth)
      return `Turn ${turn} needs fresh credentials of yours. Sign in again, then continue it.`;
    const outcome = this.conversation.turns.get(turn)?.outcome;
    if (outcome && outcome !== "interrupted") return `Turn ${turn} can be continued.`;
    return `Turn ${turn} was interrupted: its process ended. All that it had stored is here.`;
  }

  // --- older messages, and where it is scrolled to -----------------------------------------------

  olderShown() {
    this.older.hidden = this.conversation.older === null;
  }

  async back() {
    this.older.disabled = true;
    await this.conversation.loadOlder().catch(this.actions.problem);
    this.older.disabled = false;
  }

  prepend() {
    const height = this.element.scrollHeight;
    for (const [position, element] of this.shown) {
      const entry = this.conversation.entries.get(position);
      if (entry?.message.role !== "toolResult" || this.isAlone(entry)) continue;
      element.remove(); // its call has come
      this.shown.delete(position);
    }
    for (const entry of this.sorted()) this.put(entry);
    this.turnEnds();
    this.olderShown();
    this.element.scrollTop += this.element.scrollHeight - height;
  }

  trimmed() {
    for (const [position, element] of this.shown) {
      if (this.conversation.entries.has(position)) continue;
      element.remove();
      this.shown.delete(position);
    }
    for (const [id, card] of this.cards) if (!card.element.isConnected) this.cards.delete(id);
    for (const [turn, element] of this.ends) {
      if (this.shown.has(Number(element.dataset.position))) continue;
      element.remove();
      this.ends.delete(turn);
    }
    this.olderShown();
  }

  scrolled() {
    const {scrollTop, scrollHeight, clientHeight} = this.element;
    const near = scrollHeight - scrollTop - clientHeight < 80;
    if (near || scrollTop < this.top) this.atEnd = near; // growth below keeps the reader at the end
    this.top = scrollTop;
    this.newest.hidden = near;
    this.keepEnd();
  }

  keepEnd() {
    if (!this.atEnd) return;
    this.element.scrollTop = this.element.scrollHeight;
    this.top = this.element.scrollTop;
  }

  toEnd() {
    this.atEnd = true;
    this.newest.hidden = true;
    this.keepEnd();
  }

  /**
   * The message that shows one: of a result, the one that made its call; of a hidden one, the next.
   *
   * @param {number} position
   */
  shownFor(position) {
    const message = this.conversation.entries.get(position)?.message;
    const isResult = message?.role === "toolResult";
    const from = isResult ? this.conversation.callerOf(message.tool_call_id, position) : position;
    if (from !== undefined && this.shown.has(from)) return from;
    return Math.min(...[...this.shown.keys()].filter((one) => one >= position));
  }

  /** Show one message. @param {number} position */
  async reveal(position) {
    const {conversation} = this;
    const {signal} = conversation.closing;
    if ((conversation.older ?? 0) - position > MOST_REVEALED) throw new Error(FAR_UP);
    while (!signal.aborted && conversation.older !== null && conversation.older > position)
      await conversation.loadOlder(REVEALED_AT_ONCE);
    const found = this.shown.get(this.shownFor(position));
    if (!found) return;
    this.atEnd = false;
    found.scrollIntoView({block: "center"});
    found.classList.add("found");
    setTimeout(() => found.classList.remove("found"), 2500);
  }
}

/** What was typed here is whole. */
const unclipped = async () => "";

/** @param {string} text @param {string} action @param {() => void} act @param {string} [kind] */
function bar(text, action, act, kind = "") {
  const button = h("button", {type: "button", class: kind, onclick: act}, action);
  return h("div", {class: "bar", role: "group", "aria-label": text}, h("span", {}, text), button);
}

/** The budget that has no room, and what it takes. @param {string | null} [limit] its name */
function budgetText(limit) {
  const [whose, period] = (limit ?? "").split("_");
  if (whose === "owner") return `your budget of the ${period} to be raised or renewed`;
  if (whose === "tenant") return `the tenant's budget of the ${period} to be raised or renewed`;
  return "the budget to be raised";
}
