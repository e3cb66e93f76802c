/**
 * The field for messages: sends one, steers the running turn, or stops it.
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
    this.isKept = true; // what is typed, for a reload or another conversation
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

  /**
   * Put a message back, before what was typed since, into the field of its conversation.
   *
   * @param {string} text
   * @param {string} id of the conversation, which may have been left
   */
  giveBack(text, id) {
    const isHere = id === this.conversation?.id;
    const typed = isHere ? this.input.value : (sessionStorage.getItem(DRAFT + id) ?? "");
    const isThere = typed === text || typed.startsWith(`${text}\n\n`);
    const both = isThere ? typed : [text, typed].filter((one) => one.trim()).join("\n\n");
    if (isHere) this.put(both);
    else sessionStorage.setItem(DRAFT + id, both);
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
    const isKept = keep(this.conversation.id, this.input.value);
    if (isKept === this.isKept) return;
    this.isKept = isKept;
    this.update();
  }

  /** Show what can be done now. */
  update() {
    const running = Boolean(this.conversation?.running);
    const pending = this.conversation?.record?.pending.length > 0;
    this.stop.hidden = this.later.hidden = !running;
    this.send.textContent = running ? "Steer" : "Send";
    this.hint.textContent = !this.isKept
      ? "This text is too long for the tab to keep: it is lost when you leave the conversation."
      : this.attachments.files.length
        ? `Files: ${this.attachments.room()}.`
        : running
          ? "Steer: the model reads it before its next call. Send after: when the turn ends."
          : pending
            ? "A new message gives up what waits for an answer."
            : "Enter sends, Shift+Enter begins a line.";
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const composes = event.isComposing || event.keyCode === 229; // Safari ends a word by Enter
    if (event.key !== "Enter" || event.shiftKey || composes) return;
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
    const files = [...attachments.files];
    const message = attachments.message(text);
    this.key ||= newKey(); // the same one again if the answer to the request was lost
    try {
      if (how === "send") await conversation.send(message, this.key);
      else await conversation.tell(how, message, this.key);
      this.actions.problem(null);
      forget(conversation.id, text);
      if (this.conversation !== conversation) return;
      attachments.remove(files);
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

/** Keep a text for its conversation: all of it or nothing. @param {string} id @param {string} text */
function keep(id, text) {
  try {
    if (text) sessionStorage.setItem(DRAFT + id, text);
    else sessionStorage.removeItem(DRAFT + id);
    return true;
  } catch {
    sessionStorage.removeItem(DRAFT + id);
    return false; // it has no room
  }
}

/** Drop a kept text that was sent. @param {string} id @param {string} text */
function forget(id, text) {
  if (sessionStorage.getItem(DRAFT + id)?.trim() === text) keep(id, "");
}
