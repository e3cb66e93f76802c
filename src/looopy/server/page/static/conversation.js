/**
 * One conversation as the server has it: its stored messages and its new events.
 *
 * It loads the newest messages, then follows the events after them. After a lost connection it
 * continues after the last event that it has, so no event is missed or comes twice. Views listen
 * for `change`; `what` of its detail names the new part.
 */

import {Problem, Unreachable, at, call, follow, get} from "./api.js";
import {announce} from "./dom.js";
import {again, count, lacksRoom} from "./text.js";

export const CLIP = 20_000; // characters of a text that cross the wire unasked
const PAGE = 40;
const MOST_SHOWN = 400; // messages that are kept: older ones are loaded again when asked for
const MOST_KEPT = 1000; // the same, with the results of their calls
const SLOWEST_S = 2; // between two attempts
const LONGEST_S = 60; // if the server asks for more patience
const REFRESHES = 5;
const SETTLED_MS = 500; // how long a stream has to last after a refused one
const RECALL_MS = 15_000; // how long the log of what is here already may take to come
const HIDDEN_MS = 30_000; // before a hidden page closes its stream
const STREAM = [
  "status_change",
  "tool_execution_update",
  "thinking",
  "rate_limit",
  "model_rerouted",
]
  .map((name) => `include=${name}`)
  .join("&");

/**
 * @typedef {{position: number, turn: number, seq?: number, message: any,
 *   clipped?: Record<string, number>}} Entry
 * @typedef {{state: "running" | "done" | "failed", args?: any, edited?: boolean,
 *   clipped?: Record<string, number>, progress?: string, fraction?: number, seconds?: number,
 *   result?: Entry}} Call
 */

export class Conversation extends EventTarget {
  /** @param {string} id */
  constructor(id) {
    super();
    this.id = id;
    /** @type {any} */
    this.record = null;
    /** @type {Map<number, Entry>} */
    this.entries = new Map();
    /** It names the conversation. @type {Entry | undefined} */
    this.first = undefined;
    /** By `keyOf`: providers use an id again in a later turn. @type {Map<string, Call>} */
    this.calls = new Map();
    /** Positions of the messages that made a call of this id. @type {Map<string, number[]>} */
    this.callers = new Map();
    /** @type {Map<number, any>} */
    this.turns = new Map();
    /** The newest version of each, as far as they fit on a page. @type {any[]} */
    this.artifacts = [];
    /** @type {Map<string, any>} */
    this.decisions = new Map();
    /** @type {{text: string, thinking: string} | null} */
    this.live = null;
    this.notice = "";
    /** The wait that the notice is about. @type {{until: number, reason: string} | null} */
    this.retry = null;
    this.noticeLasts = false;
    /** Messages that a running turn has not taken yet. @type {{message: string | any[], how: string}[]} */
    this.queued = [];
    /** @type {number | null} */
    this.older = null;
    this.connected = false;
    this.absent = false; // it begins with its first message
    /** The server's reason for showing nothing new. @type {Problem | null} */
    this.refused = null;
    this.isWhole = false; // else it has to be loaded, before more events make sense
    this.seq = 0;
    this.newest = 0; // position of the model's last answer
    this.closing = new AbortController();
    /** @type {Promise<void> | null} */
    this.opening = null;
  }

  /** True if a turn runs, as far as this page knows. */
  get running() {
    return this.record?.status === "busy";
  }

  /** Load it, and follow it until `close`: once, however often it is called. */
  open() {
    this.opening ??= this.opened().finally(() => (this.opening = null));
    return this.opening;
  }

  async opened() {
    for (let tries = 0; !this.record; tries += 1) {
      try {
        await this.load();
      } catch (error) {
        if (this.closing.signal.aborted) return;
        this.record = null; // a part of it came
        if (error instanceof Problem && error.code === "context_not_found") {
          this.absent = true;
          return this.emit("absent");
        }
        if (!isAway(error)) throw error;
        this.refused = refusal(error);
        this.emit("connection");
        await later(tries, error);
      }
      if (this.closing.signal.aborted) return;
    }
    this.refused = null;
    void this.keepFollowing();
  }

  get isClosed() {
    return this.closing.signal.aborted;
  }

  /** Leave it; nothing on the server ends. */
  close() {
    this.closing.abort();
  }

  /** Read everything again. Meanwhile no event may be taken: it would be lost. */
  async load() {
    this.isWhole = false;
    const record = await get(at(this.id));
    const below = record.last_position + 1;
    const page = await get(at(this.id, `/messages?before=${below}&limit=${PAGE}&clip=${CLIP}`));
    const begin = page.next === null ? page : await get(at(this.id, "/messages?limit=1&clip=400"));
    this.record = record;
    this.absent = false;
    this.seq = record.last_seq;
    this.entries = new Map(page.items.map((/** @type {Entry} */ one) => [one.position, one]));
    this.first = begin.items[0];
    this.older = page.next;
    this.newest = 0;
    this.turns.clear();
    this.calls.clear();
    this.callers.clear();
    this.decisions.clear();
    this.placeAll();
    await Promise.all([this.loadTurns(), this.list(), this.wait()]);
    this.live = null;
    this.isWhole = true;
    this.emit("all");
    void this.recall(page.items[0], this.seq);
  }

  /** Read the page of messages before the loaded ones. */
  async loadOlder(limit = PAGE) {
    const {older} = this;
    if (older === null) return;
    const path = at(this.id, `/messages?before=${older}&limit=${limit}&clip=${CLIP}`);
    const page = await get(path);
    if (older !== this.older) return; // they are not before what is here now
    this.older = page.next;
    const [next] = [...this.entries.values()]
      .filter((one) => one.message.role !== "toolResult") // its call may be on this page
      .sort((a, b) => a.position - b.position);
    for (const entry of page.items) this.entries.set(entry.position, entry);
    this.placeAll();
    await this.loadTurns();
    this.emit("older");
    void this.recall(page.items[0], next?.seq ?? this.seq);
  }

  /**
   * Read what messages lack about calls: arguments that a person changed, decisions, times.
   *
   * @param {Entry | undefined} first the message from which on the log is read
   * @param {number} upto the last event
   */
  async recall(first, upto) {
    if (!first?.seq || first.seq > upto) return;
    const signal = AbortSignal.any([this.closing.signal, AbortSignal.timeout(RECALL_MS)]);
    let below = first.position + 1;
    const known = /** @type {Record<string, (event: any) => void>} */ ({
      message_end: (event) => {
        if (event.message.role === "assistant") below = event.position + 1;
      },
      tool_execution_start: (event) => {
        const state = this.calls.get(this.keyOf(event.tool_call_id, below))?.state ?? "running";
        this.called(event, {state, ...given(event)}, below);
      },
      tool_execution_end: (event) => {
        const state = event.is_error ? "failed" : "done";
        this.called(event, {state, seconds: event.duration_s}, below);
      },
      approval_decided: (event) => this.decided(event, below),
    });
    try {
      const path = at(this.id, `/events?format=compact&clip=${CLIP}&after=${first.seq - 1}`);
      for await (const frame of follow(path, signal)) {
        if (!Array.isArray(frame.data) && !frame.data?.path) known[frame.name]?.(frame.data);
        if (Number(frame.id) >= upto) break;
      }
    } catch {
      // what is here is right, with less beside it
    }
  }

  placeAll() {
    for (const entry of this.entries.values()) this.introduce(entry);
    for (const entry of this.entries.values()) this.place(entry);
  }

  /** Remember whose calls a message made. @param {Entry} entry */
  introduce(entry) {
    if (entry.message.role !== "assistant") return;
    this.newest = Math.max(this.newest, entry.position);
    for (const block of entry.message.content) {
      if (block.type !== "toolCall") continue;
      const known = this.callers.get(block.id) ?? [];
      if (known.includes(entry.position)) continue;
      this.callers.set(
        block.id,
        [...known, entry.position].sort((a, b) => a - b),
      );
    }
  }

  /**
   * The key of a call: its id, and the message that made it.
   *
   * @param {string} id
   * @param {number} [below] a position after that message; the newest if it is left out
   */
  keyOf(id, below = Infinity) {
    return `${this.callerOf(id, below) ?? "?"}:${id}`;
  }

  /** The message that made a call: its position. @param {string} id @param {number} below */
  callerOf(id, below) {
    return (this.callers.get(id) ?? []).findLast((position) => position < below);
  }

  /** Forget the oldest messages, if there are very many: they are a request away. */
  trim() {
    if (this.entries.size <= MOST_SHOWN * 1.25) return;
    const all = [...this.entries.keys()].sort((a, b) => a - b);
    const shown = all.filter((one) => this.entries.get(one)?.message.role !== "toolResult");
    const few = shown.length <= MOST_SHOWN * 1.25;
    if (few && all.length <= MOST_KEPT * 1.25) return;
    const least = few ? all[all.length - MOST_KEPT] : shown[shown.length - MOST_SHOWN];
    const first = shown.findLast((one) => one <= least); // a call goes with its results
    if (first === undefined || first === all[0]) return;
    this.forget(first);
    this.older = first;
    this.emit("trimmed");
  }

  /** Keep neither the messages before this position nor their calls. @param {number} first */
  forget(first) {
    for (const one of this.entries.keys()) if (one < first) this.entries.delete(one);
    for (const [key, {result}] of this.calls)
      if ((Number.parseInt(key, 10) || (result?.position ?? first)) < first) this.calls.delete(key);
    for (const key of this.decisions.keys())
      if (Number.parseInt(key, 10) < first) this.decisions.delete(key);
    for (const [id, made] of this.callers) {
      const kept = made.filter((one) => one >= first);
      if (kept.length) this.callers.set(id, kept);
      else this.callers.delete(id);
    }
  }

  /** Read which artifacts there are. */
  async list() {
    this.artifacts = (await get(at(this.id, "/artifacts?limit=200"))).items;
    this.emit("listed");
  }

  /** Read which messages wait for a turn. */
  async wait() {
    const page = await get(at(this.id, "/inbox?limit=200"));
    this.queued = page.items.map((/** @type {any} */ one) => ({
      message: one.message.content,
      how: one.kind === "steer" ? "steer" : "follow-up",
    }));
  }

  async loadTurns() {
    const first = Math.min(...[...this.entries.values()].map((one) => one.turn || Infinity));
    const known = [...this.turns.keys()].filter((turn) => this.turns.get(turn).ended_at);
    let after = Number.isFinite(first) ? first - 1 : this.record.turn_count;
    while (known.includes(after + 1)) after += 1;
    for (let pages = 0; pages < 20 && after < this.record.turn_count; pages += 1) {
      const page = await get(at(this.id, `/turns?after=${Math.max(0, after)}&limit=200`));
      for (const turn of page.items) this.turns.set(turn.turn, turn);
      if (page.next === null) break;
      after = page.next;
    }
  }

  /** Read the record again: its status, what waits, who holds it. Answers may overtake events. */
  async refresh() {
    for (let tries = 0; tries < REFRESHES; tries += 1) {
      const found = await get(at(this.id));
      if (found.last_seq < Math.max(this.seq, this.record?.last_seq ?? 0)) continue; // it was late
      this.record = found;
      return this.emit("record");
    }
  }

  async keepFollowing() {
    let settled = 0;
    let stale = false; // the server was lost, and has not sent its state since
    for (let tries = 0; !this.closing.signal.aborted; tries += 1) {
      const unseen = hidden();
      const signal = AbortSignal.any([this.closing.signal, unseen.signal]);
      let failure = /** @type {unknown} */ (null);
      try {
        if (!this.isWhole) await this.load();
        const path = at(this.id, `/events?format=compact&${STREAM}&clip=${CLIP}&after=${this.seq}`);
        const follows = () => {
          tries = 0;
          this.connected = true;
          this.refused = null;
          this.emit("connection");
          if (stale) void this.refresh().catch(() => {}); // it ends a turn that a dead process left
          stale = false;
        };
        const opened = () => {
          if (this.refused) settled = setTimeout(follows, SETTLED_MS); // it may be refused again
          else follows();
        };
        for await (const frame of follow(path, signal, opened)) {
          if (frame.name === "problem") throw problemOf(frame.data?.error);
          await this.take(frame);
        }
      } catch (error) {
        if (this.closing.signal.aborted) return;
        failure = error;
        this.refused = refusal(error);
        if (error instanceof Problem && !isAway(error)) {
          if (error.code !== "invalid_place") return this.emit("lost", error);
          this.isWhole = false; // the log is another one
        }
      } finally {
        clearTimeout(settled);
        unseen.end();
      }
      if (this.closing.signal.aborted) return;
      this.live = null; // it was not committed; if it runs on, it comes again from its beginning
      [this.notice, this.retry] = ["", null];
      if (unseen.signal.aborted) {
        await looked();
        tries = -1;
        stale = true;
        continue;
      }
      this.connected = false;
      this.emit("connection");
      await later(tries, failure);
      stale = true;
      await this.refresh().then(
        () => (stale = false),
        () => {},
      );
    }
  }

  /**
   * Take the next frame of the stream.
   *
   * @param {import("./api.js").Frame} frame
   * @returns {Promise<void> | void} until which the next one has to wait
   */
  take(frame) {
    if (frame.id && Number(frame.id) <= this.seq) return void (this.live = null); // it was loaded
    if (frame.id) this.seq = Number(frame.id);
    const event = frame.data;
    if (event.path || Array.isArray(event)) return; // of an agent that works for a call
    if (frame.name === "") return this.grow("text", event);
    if (frame.name === "thinking") return this.grow("thinking", event);
    const known = /** @type {Record<string, (event: any) => Promise<void> | void>} */ ({
      turn_start: () => this.began(event),
      message_start: () => this.grow("text", ""),
      message_end: () => this.ended(event),
      tool_execution_start: () =>
        this.called(event, {state: "running", ...given(event)}),
      tool_execution_update: () => this.reported(event),
      tool_execution_end: () =>
        this.called(event, {
          state: event.is_error ? "failed" : "done",
          seconds: event.duration_s,
        }),
      approval_decided: () => this.decided(event),
      artifact_update: () => this.emit("artifacts"),
      status_change: () => this.retried(event),
      rate_limit: () => this.limited(event),
      model_rerouted: () =>
        this.note(`${event.answered} answers instead of ${event.asked}.`, null, true),
      warning: () => this.note(event.text),
      error: () => this.note(event.text),
      turn_end: () => this.over(event),
      compaction: () => this.load(),
      history_rewound: () => this.load(),
      history_cleared: () => this.load(),
    });
    return known[frame.name]?.(event);
  }

  /** @param {any} event */
  began(event) {
    const continues = event.continues ?? null;
    const {turn, process} = event;
    this.turns.set(turn, {turn, continues, process, started_at: null, ended_at: null});
    Object.assign(this.record, {status: "busy", turn_count: event.turn, pending: []});
    this.record.interrupted_turn = null;
    this.note("");
    this.emit("record");
    void this.refresh().catch(() => {}); // who holds it
  }

  /** @param {"text" | "thinking"} part @param {string} more */
  grow(part, more) {
    this.live ??= {text: "", thinking: ""};
    this.live[part] += more;
    if (more && !this.noticeLasts) [this.notice, this.retry] = ["", null];
    this.emit("live");
  }

  /** @param {any} event */
  ended(event) {
    const {position, turn, message} = event;
    const entry = this.keep({position, turn, message, clipped: within(event.clipped, "/message")});
    if (message.role === "assistant") this.live = null;
    if (message.role === "user") this.taken(message);
    this.introduce(entry);
    this.place(entry);
    this.emit("message", entry);
    this.trim();
  }

  /** A message that waited is in the log now. @param {any} message */
  taken(message) {
    const said = textIn(message.content);
    const place = this.queued.findIndex((one) => textIn(one.message) === said);
    if (place >= 0) this.queued.splice(place, 1);
  }

  /** @param {Entry} entry */
  keep(entry) {
    if (entry.position === 1) this.first = entry;
    this.entries.set(entry.position, entry);
    return entry;
  }

  /** Give a result to its call. @param {Entry} entry */
  place(entry) {
    if (entry.message.role !== "toolResult") return;
    const key = this.keyOf(entry.message.tool_call_id, entry.position);
    const state = entry.message.is_error ? "failed" : "done";
    this.calls.set(key, {...this.calls.get(key), state, result: entry});
    this.emit("call", key);
  }

  /** @param {any} event @param {Call} facts @param {number} [below] as in `keyOf` */
  called(event, facts, below) {
    const key = this.keyOf(event.tool_call_id, below);
    this.calls.set(key, {...this.calls.get(key), ...facts});
    this.emit("call", key);
  }

  /** @param {any} event */
  reported(event) {
    const known = this.calls.get(this.keyOf(event.tool_call_id)) ?? {
      state: /** @type {const} */ ("running"),
    };
    const said = event.partial_result;
    const text = said === undefined ? known.progress : (said?.text ?? said);
    const progress = typeof text === "string" ? text : JSON.stringify(text);
    this.called(event, {...known, progress, fraction: event.progress ?? known.fraction});
  }

  /** @param {any} event @param {number} [below] as in `keyOf` */
  decided(event, below) {
    const key = this.keyOf(event.tool_call_id, below);
    this.decisions.set(key, event);
    this.emit("call", key);
  }

  /** @param {any} event */
  retried(event) {
    if (!event.attempt) return;
    this.live = null;
    const text = event.rate_limited ? "The model is busy." : "The model did not answer.";
    const delay = (event.delay_s ?? 0) * 1000;
    const left = Date.parse(event.next_at) - Date.now(); // if this machine's clock is right
    const wait = left >= 0 && left <= delay ? left : delay;
    this.note(text, {until: performance.now() + wait, reason: event.reason ?? ""});
    announce(`${text} ${again(wait)}`);
    this.emit("live");
  }

  /** A limit of the model's server is nearly used up. @param {any} event */
  limited(event) {
    const low = event.limits?.find(
      (/** @type {any} */ one) => !one.left || (one.limit && one.left * 5 <= one.limit),
    );
    if (event.refused || !low) return; // the wait for the next attempt is shown
    const of = low.limit ? ` of ${count(low.limit)}` : "";
    const kind = low.kind.replaceAll("_", " ");
    this.note(`The model may soon be busy: ${count(low.left)}${of} ${kind} are left.`, null, true);
  }

  /**
   * @param {string} text
   * @param {{until: number, reason: string} | null} [retry]
   * @param {boolean} [lasts] it stays while the answer comes
   */
  note(text, retry = null, lasts = false) {
    this.notice = text ?? "";
    this.retry = retry;
    this.noticeLasts = lasts;
    this.emit("notice");
  }

  /** @param {any} event */
  over(event) {
    this.live = null;
    const ended = new Date().toISOString();
    this.turns.set(event.turn, {...this.turns.get(event.turn), ...event, ended_at: ended});
    // The open request shows a lack of room, with a way to continue; and a wait is over.
    if (lacksRoom(event) || this.retry) this.note("");
    Object.assign(this.record, {status: "ready", lease: null});
    this.emit("turn", event);
    void this.afterTurn();
  }

  async afterTurn() {
    try {
      await this.refresh();
      const page = await get(at(this.id, `/turns?after=${this.record.turn_count - 1}&limit=2`));
      for (const turn of page.items) this.turns.set(turn.turn, turn);
      await this.list();
      this.emit("turn");
    } catch {
      // the stream is lost as well; it reads all of this again
    }
  }

  // --- what a person does ------------------------------------------------------------------------

  /**
   * Begin a turn. The key makes a repeated request harmless.
   *
   * @param {string | {content: any[]}} message
   * @param {string} key
   */
  async send(message, key) {
    await call("POST", at(this.id, "/turns"), {message}, {"Idempotency-Key": key});
    this.emit("sent");
    if (!this.record) void this.begun();
  }

  /** Follow a conversation that is there now. */
  async begun() {
    try {
      await this.opening; // it may have asked before the message was there
      if (!this.record) await this.open();
    } catch (error) {
      this.emit("lost", error);
    }
  }

  /** Continue the interrupted turn. */
  async resume() {
    await call("POST", at(this.id, "/turns"), {});
  }

  /** @param {Record<string, unknown>} inputs by request */
  async answer(inputs) {
    await call("POST", at(this.id, "/turns"), {inputs});
  }

  /**
   * Send a message to the running turn.
   *
   * @param {"steer" | "follow-up"} how
   * @param {string | {content: any[]}} message
   * @param {string} key makes a repeated request harmless
   */
  async tell(how, message, key) {
    const body = {message, expected_turn: this.record.turn_count};
    const told = {message: typeof message === "string" ? message : message.content, how};
    this.queued.push(told); // before it is sent: the turn may have taken it when the answer comes
    try {
      await call("POST", at(this.id, `/${how}`), body, {"Idempotency-Key": key});
    } catch (error) {
      this.queued = this.queued.filter((one) => one !== told);
      this.emit("record");
      throw error;
    }
    this.emit("sent");
    if (this.isClosed || !this.queued.includes(told)) return; // it was left, or taken
    announce(
      how === "steer"
        ? "Your message reaches the model before its next call."
        : "Your message follows when the turn ends.",
    );
  }

  async cancel() {
    await call("POST", at(this.id, "/cancel"), {});
  }

  /** @param {number} to the first turn that is hidden */
  async rewind(to) {
    await call("POST", at(this.id, "/rewind"), {to});
  }

  async undoRewind() {
    await call("POST", at(this.id, "/undo-rewind"), {});
  }

  /** @param {number} [position] of the last message to copy @returns {Promise<string>} */
  async fork(position) {
    const number = crypto.getRandomValues(new Uint32Array(1))[0].toString(36);
    const name = `${this.id.replace(/-fork-\w+$/, "").slice(0, 80)}-fork-${number}`;
    const made = await call("POST", at(this.id, "/fork"), {at: position, new_context_id: name});
    return made.context_id;
  }

  async erase() {
    await call("DELETE", at(this.id));
  }

  /** @param {string} what @param {any} [value] */
  emit(what, value) {
    if (this.isClosed) return; // an answer came late: it is not shown any more
    this.dispatchEvent(new CustomEvent("change", {detail: {what, value}}));
  }
}

/** The text of a content, as far as it crosses the wire unasked. @param {string | any[]} content */
function textIn(content) {
  const parts = typeof content === "string" ? [{text: content}] : content;
  return parts.map((one) => [...(one.text ?? "")].slice(0, CLIP).join("")).join("");
}

/** The arguments of a call that began, if a person changed them. @param {any} event */
function given({args, edited, clipped}) {
  return {args, edited, clipped};
}

/** Lengths of the texts below a pointer. @param {any} lengths @param {string} path */
function within(lengths, path) {
  if (!lengths) return undefined;
  const inside = Object.entries(lengths).filter(([name]) => name.startsWith(path));
  return Object.fromEntries(inside.map(([name, length]) => [name.slice(path.length), length]));
}

/** True if a later request may be answered. @param {unknown} error */
export function isAway(error) {
  if (error instanceof Unreachable) return true;
  return error instanceof Problem && (error.status === 429 || error.status >= 500);
}

/** The server's reason; null if there is no server, as far as a proxy knows. @param {unknown} error */
function refusal(error) {
  return error instanceof Problem && ![502, 503, 504].includes(error.status) ? error : null;
}

/** What ended a stream; only a conversation that is gone ends it for good. @param {any} said */
function problemOf(said) {
  const status = {context_not_found: 404, internal_error: 500}[said?.code] ?? 503;
  return new Problem(status, said);
}

/** A signal that the page has been hidden for a while, and how to stop waiting for it. */
function hidden() {
  const unseen = new AbortController();
  let timer = 0;
  const changed = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => unseen.abort(), HIDDEN_MS);
  };
  document.addEventListener("visibilitychange", changed);
  changed();
  const end = () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", changed);
  };
  return {signal: unseen.signal, end};
}

/** Wait until the page is looked at. */
function looked() {
  return new Promise((resolve) => {
    const done = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", done);
      resolve(undefined);
    };
    document.addEventListener("visibilitychange", done);
    done();
  });
}

/** Wait before a request is made again. @param {number} tries so far @param {unknown} error */
export function later(tries, error) {
  const asked = error instanceof Problem ? Math.min(error.after_s, LONGEST_S) : 0;
  return pause(Math.max(asked, Math.min(SLOWEST_S, 0.3 * 2 ** tries)));
}

/** Wait, but no longer than until the machine is online or the page is looked at again. */
function pause(/** @type {number} */ seconds) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      document.removeEventListener("visibilitychange", done);
      resolve(undefined);
    };
    const timer = setTimeout(done, seconds * 1000);
    addEventListener("online", done);
    document.addEventListener("visibilitychange", done);
  });
}
