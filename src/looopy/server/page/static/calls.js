/**
 * A call of a tool: one line with its state, which folds open to arguments and result.
 */

import {at, follow, get} from "./api.js";
import {json, picturesOf, resultBlocks, wholeOf} from "./blocks.js";
import {fill, h} from "./dom.js";
import {duration, shortened} from "./text.js";

/** One call of a tool, which folds open to its arguments and its result. */
export class CallCard {
  /**
   * @param {any} call
   * @param {import("./conversation.js").Entry} entry
   * @param {import("./conversation.js").Conversation} conversation
   */
  constructor(call, entry, conversation) {
    this.call = call;
    this.entry = entry;
    this.conversation = conversation;
    const below = entry.message.role === "toolResult" ? entry.position : entry.position + 1;
    this.key = conversation.keyOf(call.id, below);
    this.state = h("span", {class: "state"});
    this.brief = h("span", {class: "brief"});
    this.body = h("div", {class: "call-body"});
    this.pictures = h("div", {class: "pictures"});
    this.progress = h("p", {class: "plain"});
    this.report = labelled("Last report", this.progress);
    this.inside = "";
    this.filled = false;
    this.details = h(
      "details",
      {class: "call", ontoggle: () => this.fillBody()},
      h("summary", {}, this.state, h("code", {}, shortened(call.name, 80)), this.brief),
      this.body,
    );
    this.element = h("div", {class: "call-place"}, this.details, this.pictures);
    this.update();
  }

  update() {
    const known = this.conversation.calls.get(this.key);
    const decision = this.conversation.decisions.get(this.key);
    this.isOpen = !known || known.state === "running";
    const [kind, state] = this.standing(known);
    this.details.className = `call ${kind}`;
    fill(this.state, h("span", {class: "unseen"}, `${state}: `));
    const args = known?.args ?? this.call.arguments ?? this.call.invalid_arguments;
    const said = known?.progress && kind === "running" ? known.progress : brief(args);
    const seconds = known?.seconds === undefined ? null : duration(known.seconds);
    fill(
      this.brief,
      h("span", {class: "words"}, said),
      known?.edited ? h("span", {class: "chip wait"}, "edited") : null,
      decision ? h("span", {class: "chip"}, decision.decision) : null,
      seconds ? h("span", {class: "faint"}, seconds) : null,
    );
    const content = known?.result?.message.content;
    if (Array.isArray(content) && !this.pictures.firstChild) fill(this.pictures, picturesOf(content));
    this.report.hidden = !known?.progress;
    fill(this.progress, known?.progress);
    const inside = [known?.edited, known?.result?.position, decision?.decision].join();
    if (inside !== this.inside) this.filled = false; // else, what was unfolded stays, and the focus
    this.inside = inside;
    this.fillBody();
  }

  /**
   * How it stands: for the eye, and in words.
   *
   * @param {import("./conversation.js").Call | undefined} known
   * @returns {[string, string]}
   */
  standing(known) {
    if (known && known.state !== "running") return [known.state, known.state];
    if (this.entry.position >= this.conversation.newest) {
      const pending = this.conversation.record?.pending ?? [];
      const asks = pending.some((/** @type {any} */ one) => one.tool_call_id === this.call.id);
      if (asks) return ["waiting", "waits for an answer"];
      if (this.conversation.running) return ["running", "runs"];
    }
    return known ? ["cut", "has no result"] : ["called", "was called"];
  }

  /** Its contents are made when it opens. */
  fillBody() {
    if (!this.details.open || this.filled) return;
    this.filled = true;
    const known = this.conversation.calls.get(this.key);
    const decision = this.conversation.decisions.get(this.key);
    const result = known?.result ?? (this.entry.message.role === "toolResult" ? this.entry : null);
    const parts = [];
    const given = this.given();
    if (given) parts.push(labelled("Arguments", given));
    if (known?.edited)
      parts.push(
        labelled(
          "Ran with the arguments that a person gave",
          json(known, "/args", known.args, () => this.changed()),
        ),
      );
    if (decision) {
      const by = decision.actor_id ? ` by ${decision.actor_id}` : "";
      const words = `${decision.decision}${by}${decision.text ? `: ${decision.text}` : ""}`;
      parts.push(h("p", {class: "decision"}, words));
    }
    parts.push(this.report);
    if (result) {
      const whole = wholeOf(this.conversation.id, result.position);
      const title = result.message.is_error ? "Error" : "Result";
      parts.push(labelled(title, h("div", {}, resultBlocks(result, whole))));
    }
    fill(this.body, parts);
  }

  /** The arguments that the model gave. */
  given() {
    const name = this.call.invalid_arguments === undefined ? "arguments" : "invalid_arguments";
    const args = this.call[name];
    if (args === undefined) return null;
    const {message, position} = this.entry;
    const pointer = `/content/${message.content.indexOf(this.call)}/${name}`;
    return json(this.entry, pointer, args, wholeOf(this.conversation.id, position));
  }

  /** The arguments that a person gave, whole: the log has them. */
  async changed() {
    const {id} = this.conversation;
    const {seq} = await get(at(id, `/messages/${this.entry.position}`));
    const done = new AbortController();
    try {
      const events = follow(at(id, `/events?format=compact&after=${seq}`), done.signal);
      for await (const {name, data} of events) {
        const begins = name === "tool_execution_start" && !data.path;
        if (begins && data.edited && data.tool_call_id === this.call.id) return data.args;
      }
    } finally {
      done.abort(); // the stream would continue
    }
  }
}

/** @param {string} title @param {Node} node */
function labelled(title, node) {
  return h("div", {class: "labelled"}, h("div", {class: "part-name"}, title), node);
}

/** The arguments of a call, on one line. @param {any} args */
function brief(args) {
  if (typeof args !== "object" || args === null)
    return args === undefined ? "" : shortened(String(args), 120);
  const parts = Object.entries(args)
    .slice(0, 8)
    .map(
      ([name, value]) =>
        `${name}: ${shortened(typeof value === "string" ? value : JSON.stringify(value), 60)}`,
    );
  return shortened(parts.join(", "), 140);
}
