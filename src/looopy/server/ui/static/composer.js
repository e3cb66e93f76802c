/**
 * The field for messages: sends one, or tells the running turn something, or stops it.
 */

import {newKey} from "./api.js";
import {Attachments} from "./attachments.js";
import {h} from "./dom.js";

const DRAFT = "looopy.draft.";

export class Composer {
  /** @param {{problem: (error: unknown) => void}} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {import("./conversation.js").Conversation | null} */
    this.conversation = null;
    this.key = "";
    /** Conversations to which a message is under way. */
    this.sending = new WeakSet();
    this.input = h("textarea", {
      id: "composer",
      rows: 1,
      "aria-label": "Message",
      placeholder: "Message the agent",
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event),
      oninput: () => this.changed(),
    });
    this.send = h("button", {type: "submit", class: "main"}, "Send");
    this.later = h(
      "button",
      {type: "button", onclick: () => this.submit("follow-up")},
      "Send after",
    );
    this.stop = h(
      "button",
      {type: "button", class: "danger", onclick: () => this.cancel()},
      "Stop",
    );
    this.hint = h("p", {class: "hint"});
    this.attachments = new Attachments(actions, () => {
      this.key = "";
      this.update();
    });
    this.element = h(
      "form",
      {
        class: "composer",
        onsubmit: (/** @type {Event} */ event) => {
          event.preventDefault();
          this.submit(this.conversation?.running ? "steer" : "send");
        },
      },
      this.attachments.list,
      this.attachments.picker,
      h(
        "div",
        {class: "composer-row"},
        this.attachments.button,
        this.input,
        h("div", {class: "actions"}, this.stop, this.later, this.send),
      ),
      this.hint,
    );
  }

  /** @param {import("./conversation.js").Conversation} conversation */
  attach(conversation) {
    this.conversation = conversation;
    this.attachments.clear();
    this.put(sessionStorage.getItem(DRAFT + conversation.id) ?? "", false);
    this.update();
  }

  focus() {
    this.input.focus();
  }

  /** @param {string} text @param {boolean} [focus] */
  put(text, focus = true) {
    this.input.value = text;
    this.changed();
    if (focus) this.focus();
  }

  changed() {
    this.key = "";
    this.input.rows = Math.min(8, this.input.value.split("\n").length);
    if (!this.conversation) return;
    const name = DRAFT + this.conversation.id;
    if (this.input.value) sessionStorage.setItem(name, this.input.value.slice(0, 100_000));
    else sessionStorage.removeItem(name);
  }

  /** Show what can be done now. */
  update() {
    const running = Boolean(this.conversation?.running);
    const pending = this.conversation?.record?.pending.length > 0;
    this.stop.hidden = this.later.hidden = !running;
    this.send.textContent = running ? "Steer" : "Send";
    this.hint.textContent = this.attachments.files.length
      ? `Files: ${this.attachments.room()}.`
      : running
        ? "Steer: the model reads it before its next call. Send after: when the turn ends."
        : pending
          ? "A new message gives up what waits for an answer."
          : "Enter sends, Shift+Enter begins a line.";
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!event.repeat) this.element.requestSubmit();
  }

  /** @param {"send" | "steer" | "follow-up"} how */
  async submit(how) {
    const text = this.input.value.trim();
    const {conversation} = this;
    const {attachments} = this;
    if ((!text && !attachments.files.length) || !conversation) return;
    if (this.sending.has(conversation)) return; // pressed twice
    this.sending.add(conversation);
    const message = attachments.message(text);
    this.key ||= newKey(); // the same one again if the answer to the request was lost
    try {
      if (how === "send") await conversation.send(message, this.key);
      else await conversation.tell(how, message, this.key);
      this.actions.problem(null);
      if (this.conversation !== conversation) return;
      attachments.clear();
      if (this.input.value.trim() === text) this.put("");
      this.update();
    } catch (error) {
      this.actions.problem(error);
      if (how !== "send") await conversation.refresh().catch(this.actions.problem); // it has ended
    } finally {
      this.sending.delete(conversation);
    }
  }

  async cancel() {
    try {
      await this.conversation?.cancel();
    } catch (error) {
      this.actions.problem(error);
    }
  }
}
