/**
 * A turn that runs again: answered from its log and compared, or run for real in a fork.
 */

import {Problem, at, call, get, newKey} from "./api.js";
import {textOf} from "./blocks.js";
import {CLIP, Conversation} from "./conversation.js";
import {marked, paired} from "./differences.js";
import {announce, fill, h} from "./dom.js";
import {Pending} from "./pending.js";
import {compactCount, costOfAll, count, counted, duration, outcomeText, pretty} from "./text.js";

const MOST_MESSAGES = 1000; // of a turn, on each side
const MOST_CHARS = 4000; // of a part that are shown
const PARTS = /** @type {const} */ (["model", "tools", "prompt"]);

/** The panel of one turn. Close it when it is left: it follows the fork. */
export class Replay {
  /**
   * @param {Conversation} conversation
   * @param {number} turn
   * @param {string} fork in which the turn has run again; empty: it has not
   * @param {(error: unknown) => void} problem is called if the person has to sign in again
   */
  constructor(conversation, turn, fork, problem) {
    this.conversation = conversation;
    this.turn = turn;
    this.fork = fork;
    this.problem = problem;
    this.ignore = /** @type {Set<string>} */ (new Set());
    /** The messages of the turn begin after this position. */
    this.after = 0;
    /** @type {import("./conversation.js").Entry[]} */
    this.then = [];
    /** @type {any[]} */
    this.turns = [];
    /** @type {Conversation | null} */
    this.other = null;
    this.closed = false;
    this.ended = false;
    this.drawing = 0;
    this.drawMs = 0;
    this.error = h("p", {class: "error", role: "alert"});
    this.verdict = h("div", {role: "status"});
    this.again = h("section", {class: "card again"});
    this.requests = new Pending((request, inputs) => this.answered(request, inputs));
    /** An answer that the server did not take. @type {{request: any, error: Problem} | null} */
    this.untaken = null;
    this.result = h("div", {class: "beside-place"});
    this.element = h(
      "div",
      {class: "replay"},
      h(
        "div",
        {class: "replay-top"},
        h("section", {class: "card"}, h("h3", {}, "Answered from its log"), this.verdict),
        this.again,
      ),
      this.error,
      this.requests.element,
      this.result,
    );
    this.begin().catch((error) => this.failed(error));
  }

  /** Show here what went wrong: the chat is hidden. @param {unknown} error */
  say(error) {
    if (error instanceof Problem && error.status === 401) return this.problem(error);
    fill(this.error, error instanceof Error ? error.message : String(error ?? ""));
  }

  close() {
    this.closed = true;
    this.other?.close();
    this.other = null;
  }

  async begin() {
    await this.check();
    await this.read();
    if (this.closed) return;
    this.offer();
    if (this.fork) await this.show(this.fork);
  }

  /** @param {unknown} error */
  failed(error) {
    fill(this.verdict, h("p", {class: "faint"}, "This turn was not replayed."));
    this.say(error);
  }

  // --- answered from the log ---------------------------------------------------------------------

  async check() {
    fill(this.error);
    fill(this.verdict, h("p", {class: "faint"}, "Runs, answered from the log…"));
    const path = at(this.conversation.id, `/turns/${this.turn}/replay`);
    const found = await call("POST", path, {ignore: [...this.ignore]});
    this.after = found.after;
    this.judge(found);
  }

  /** Show the outcome. @param {any} found */
  judge(found) {
    const {difference, gone} = found;
    const names = gone.map((/** @type {string} */ one, /** @type {number} */ i) => [
      i ? ", " : "",
      h("code", {}, one),
    ]);
    const place = difference?.iteration ? `Iteration ${difference.iteration}: ` : "";
    fill(
      this.verdict,
      difference
        ? h("p", {class: "chip wait"}, "It differs")
        : h("p", {class: "chip good"}, "The same"),
      gone.length
        ? h(
            "p",
            {class: "gone"},
            gone.length > 1 ? "Tools that are gone: " : "A tool is gone: ",
            names,
            ". Today's agent cannot run this turn as it ran then.",
          )
        : null,
      difference
        ? h("p", {}, "The first difference. ", place, sentence(difference.text))
        : h(
            "p",
            {},
            `Today's agent does the same with the recorded answers: ${counted(found.messages, "message")}, ${outcomeText(found)}.`,
          ),
      difference?.then || difference?.now
        ? h(
            "dl",
            {class: "values"},
            h("dt", {}, "Then"),
            h("dd", {}, difference.then || "–"),
            h("dt", {}, "Now"),
            h("dd", {}, difference.now || "–"),
          )
        : null,
      found.left_out.map((/** @type {string} */ one) =>
        h("p", {class: "faint"}, `Not compared: ${one}.`),
      ),
      this.choices(difference),
    );
  }

  /** What need not be compared. @param {any} difference */
  choices(difference) {
    if (difference?.kind !== "request" && !this.ignore.size) return null;
    const box = (/** @type {string} */ part) => {
      const change = () => {
        if (input.checked) this.ignore.add(part);
        else this.ignore.delete(part);
        this.check()
          .then(() => this.verdict.querySelector(`[name=${part}]`)?.focus())
          .catch((error) => this.failed(error));
      };
      const props = {type: "checkbox", name: part, checked: this.ignore.has(part)};
      const input = h("input", {...props, onchange: change});
      return h("label", {class: "choice"}, input, part);
    };
    return h("fieldset", {class: "choices"}, h("legend", {}, "Do not compare"), PARTS.map(box));
  }

  // --- again, in a fork --------------------------------------------------------------------------

  /** Read the turn, and the turns that continue it. */
  async read() {
    const {id} = this.conversation;
    const page = await get(at(id, `/turns?after=${this.turn - 1}&limit=50`));
    this.turns = linked(page.items, this.turn);
    const numbers = new Set(this.turns.map((one) => one.turn));
    const last = Math.max(...numbers);
    for (let after = this.after; !this.closed && this.then.length < MOST_MESSAGES;) {
      const query = `after=${after}&limit=100&clip=${CLIP}&include_hidden=true`;
      const found = await get(at(id, `/messages?${query}`));
      this.then.push(...found.items.filter((/** @type {any} */ one) => numbers.has(one.turn)));
      if (found.next === null || found.items.at(-1).turn > last) break;
      after = found.next;
    }
  }

  /** The form that runs the turn again. */
  offer() {
    const heading = h("h3", {}, "Run again beside");
    const asked = this.then.find((one) => one.message.role === "user");
    if (!asked) {
      const before = this.turns[0]?.continues;
      const link = `#/c/${encodeURIComponent(this.conversation.id)}/replay/${before}`;
      return fill(
        this.again,
        heading,
        h(
          "p",
          {},
          "This turn began without a message of yours. ",
          before ? h("a", {href: link}, `Replay turn ${before}`) : null,
          before ? ", which it continues." : null,
        ),
      );
    }
    const text = textOf(asked.message);
    let key = newKey();
    const input = h("textarea", {
      oninput: () => (key = newKey()),
      id: "beside-message",
      rows: Math.min(8, text.split("\n").length),
      readonly: Boolean(asked.clipped),
      value: text,
    });
    const go = h(
      "button",
      {type: "submit", class: "main"},
      this.fork ? "Run once more" : "Run again beside",
    );
    const run = async (/** @type {Event} */ event) => {
      event.preventDefault();
      go.disabled = true;
      const said = input.value.trim();
      const body =
        said === text.trim() || asked.clipped ? {} : {message: edited(asked.message, said)};
      const path = at(this.conversation.id, `/turns/${this.turn}/run-beside`);
      try {
        const made = await call("POST", path, body, {"Idempotency-Key": key});
        if (this.closed) return; // the fork is in the list
        announce("The turn runs again beside");
        const here = `#/c/${encodeURIComponent(this.conversation.id)}/replay/${this.turn}`;
        location.hash = `${here}/${encodeURIComponent(made.context_id)}`;
      } catch (error) {
        go.disabled = false;
        this.say(error);
      }
    };
    fill(
      this.again,
      heading,
      h(
        "p",
        {},
        "The message runs again in a fork, with today's agent. The model is called and tools run, with all their effects. This conversation stays as it is.",
      ),
      h(
        "details",
        {class: "fold", open: !this.fork},
        h("summary", {}, this.fork ? "Run once more" : "Message"),
        h(
          "form",
          {class: "form", onsubmit: run},
          h("label", {for: input.id, class: "unseen"}, "Message"),
          input,
          h("div", {class: "actions start"}, go),
        ),
      ),
    );
  }

  /** Follow the fork. @param {string} fork */
  async show(fork) {
    const other = new Conversation(fork);
    this.other = other;
    other.addEventListener("change", (event) => {
      const {what, value} = /** @type {any} */ (event).detail;
      if (this.other !== other) return;
      if (what === "absent") this.say(new Error(`The fork ${fork} is not there any more.`));
      if (what === "lost") this.say(value);
      this.requests.show(other.record?.pending ?? []);
      this.overtaken();
      this.drawing ||= setTimeout(() => this.draw(), 16 + 5 * this.drawMs);
    });
    await other.open();
    while (!this.closed && other.older !== null && other.older > this.after + 1)
      await other.loadOlder();
  }

  /** @param {any} request @param {Record<string, unknown>} inputs */
  async answered(request, inputs) {
    fill(this.error);
    this.untaken = null;
    try {
      await this.other?.answer(inputs);
    } catch (error) {
      if (error instanceof Problem) this.untaken = {request, error};
      this.overtaken();
      throw error; // the card says it
    }
  }

  /** Show that an answer was not taken, once its card is gone. */
  overtaken() {
    const {untaken, other} = this;
    const {pending = [], status = ""} = other?.record ?? {};
    const isThere = (/** @type {any} */ one) => one.request_id === untaken?.request.request_id;
    if (!untaken || pending.some(isThere)) return;
    this.untaken = null;
    const why = status === "busy" ? untaken.error.message : "another person had answered already.";
    this.say(new Error(`Your answer for ${untaken.request.tool_name} was not taken: ${why}`));
  }

  /** Both turns, side by side. */
  draw() {
    this.drawing = 0;
    const {other} = this;
    if (!other?.record) return;
    const began = performance.now();
    const entries = [...other.entries.values()]
      .filter((one) => one.position > this.after)
      .sort((a, b) => a.position - b.position);
    const first = entries[0]?.turn ?? other.record.turn_count;
    const all = [...other.turns.values()].filter((one) => one.turn >= first);
    const turns = linked(all, first);
    const numbers = new Set(turns.map((one) => one.turn));
    const asks = ["input_required", "auth_required"].includes(turns.at(-1)?.outcome);
    const waits = asks && turns.at(-1).outcome !== this.turns.at(-1)?.outcome;
    const over = turns.length > 0 && turns.every((one) => one.ended_at) && !other.running;
    const ended = over && !waits;
    const then = parts(this.then, this.turns, true);
    const now = parts(
      entries.filter((one) => numbers.has(one.turn)),
      turns,
      ended,
    );
    const rows = paired(then, over ? now : [...now, running(other)]);
    const differing = rows.filter((one) => !one.same).length;
    const href = `#/c/${encodeURIComponent(other.id)}`;
    const said = differing
      ? `${counted(differing, "part")} ${differing === 1 ? "differs" : "differ"}`
      : "Both are the same";
    if (ended && !this.ended) announce(`The new turn has ended. ${said}.`);
    this.ended = ended;
    fill(
      this.result,
      h(
        "div",
        {class: "beside-head"},
        h("h3", {}, "Then and now"),
        ended
          ? h("span", {class: `chip ${differing ? "wait" : "good"}`}, said)
          : over
            ? h("span", {class: "chip waiting"}, "The new turn waits for you")
            : h("span", {class: "chip running"}, "The new turn runs"),
        h("a", {href}, "Open the fork"),
      ),
      h(
        "ol",
        {class: "beside", "aria-label": "Then and now, side by side"},
        h(
          "li",
          {class: "row facts"},
          side("Then", h("span", {}, facts(this.turns))),
          side("Now", h("span", {}, facts(turns))),
        ),
        rows.map((one) => this.row(one, ended)),
      ),
    );
    this.drawMs = performance.now() - began;
  }

  /** @param {import("./differences.js").Row} row @param {boolean} ended */
  row(row, ended) {
    const {then, now, same} = row;
    const word = same ? "The same: " : "Differs: ";
    const kind = same ? "same" : now?.kind === "live" || (!ended && !now) ? "open" : "differs";
    return h(
      "li",
      {class: `row ${kind}`},
      h("span", {class: "unseen"}, kind === "open" ? "" : word),
      side("Then", then ? piece(then, same ? null : now) : null),
      side("Now", now ? piece(now, same ? null : then) : null),
    );
  }
}

/** Another text with the files of a message. @param {any} message @param {string} text */
function edited(message, text) {
  if (typeof message.content === "string") return text;
  const files = message.content.filter((/** @type {any} */ one) => one.type !== "text");
  return {content: [{type: "text", text}, ...files]};
}

/**
 * The turn of this number, and the turns that continue it: several continue the same one if its
 * requests were answered one by one.
 *
 * @param {any[]} all
 * @param {number} turn
 */
function linked(all, turn) {
  const found = /** @type {any[]} */ ([]);
  for (const one of all.sort((a, b) => a.turn - b.turn)) {
    const continues = found.some((before) => before.turn === one.continues);
    if (one.turn === turn || continues) found.push(one);
  }
  return found;
}

/**
 * The parts of a turn, results in the order of their calls.
 *
 * @param {import("./conversation.js").Entry[]} entries
 * @param {any[]} turns
 * @param {boolean} ended
 * @returns {import("./differences.js").Part[]}
 */
function parts(entries, turns, ended) {
  const found = /** @type {import("./differences.js").Part[]} */ ([]);
  let order = /** @type {string[]} */ ([]);
  let results = /** @type {any[]} */ ([]);
  const settle = () => {
    const place = (/** @type {any} */ one) => order.indexOf(one.tool_call_id);
    for (const one of results.sort((a, b) => place(a) - place(b))) {
      const faint = one.is_error ? "failed" : "answers";
      found.push({kind: "result", name: one.tool_name, text: blocksIn(one), faint});
    }
    results = [];
  };
  for (const {message} of entries) {
    if (message.role === "toolResult") {
      results.push(message);
      continue;
    }
    settle();
    if (message.role !== "assistant") {
      found.push({kind: "said", name: "You", text: textOf(message)});
      continue;
    }
    const calls = message.content.filter((/** @type {any} */ one) => one.type === "toolCall");
    order = calls.map((/** @type {any} */ one) => one.id);
    const text = textOf(message);
    if (text) found.push({kind: "text", name: "Agent", text});
    for (const one of calls) {
      const given = one.invalid_arguments ?? one.arguments;
      found.push({kind: "call", name: one.name, text: pretty(given), faint: "is called"});
    }
    if (message.error_message)
      found.push({kind: "error", name: "Error", text: message.error_message});
  }
  settle();
  const last = turns[turns.length - 1];
  if (ended && last) found.push({kind: "end", name: "End", text: outcomeText(last)});
  return found;
}

/** The blocks of a result, each from a line of its own. @param {any} message */
function blocksIn({content}) {
  if (typeof content === "string") return content;
  const texts = content.map((/** @type {any} */ one) => one.text).filter(Boolean);
  return texts.join("\n");
}

/** The answer that is being written. @param {Conversation} other */
function running(other) {
  return {kind: "live", name: "Agent", text: other.live?.text ?? ""};
}

/** @param {any[]} turns */
function facts(turns) {
  const sum = (/** @type {(one: any) => number} */ of) =>
    turns.reduce((all, one) => all + of(one), 0);
  const worked = sum((one) =>
    one.ended_at && one.started_at
      ? (Date.parse(one.ended_at) - Date.parse(one.started_at)) / 1000
      : 0,
  );
  const tokens = sum((one) => one.usage?.total_tokens ?? 0);
  const price = costOfAll(turns.map((one) => one.usage));
  return [duration(worked), tokens ? `${compactCount(tokens)} tokens` : "", price]
    .filter(Boolean)
    .join(" · ");
}

/** @param {string} name @param {Node | null} inside */
function side(name, inside) {
  const label = h("span", {class: "side-name"}, name);
  return h("div", {class: inside ? "side" : "side empty-side"}, label, inside ?? "–");
}

/** @param {import("./differences.js").Part} part @param {import("./differences.js").Part | null} other */
function piece(part, other) {
  const name = ["call", "result"].includes(part.kind) ? h("code", {}, part.name) : part.name;
  const text = part.kind === "live" && !part.text ? dots() : words(part, other);
  const cut = part.text.length > MOST_CHARS;
  return h(
    "div",
    {class: `piece of-${part.kind}`},
    h("div", {class: "piece-name"}, name, part.faint ? ` ${part.faint}` : null),
    h("div", {class: "plain", dir: "auto"}, text),
    cut ? h("div", {class: "faint"}, `The first ${count(MOST_CHARS)} characters.`) : null,
  );
}

function dots() {
  return h("span", {class: "dots", role: "img", "aria-label": "The turn runs"});
}

/** @param {import("./differences.js").Part} part @param {import("./differences.js").Part | null} other */
function words(part, other) {
  const text = part.text.slice(0, MOST_CHARS);
  if (!other || other.kind !== part.kind) return text;
  return marked(text, other.text.slice(0, MOST_CHARS));
}

/** @param {string} text */
function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
