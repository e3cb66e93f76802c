/**
 * The page: signs in, and shows what its address names.
 *
 * `#/` is the list, `#/requests` what others wait for, `#/new` a new conversation, `#/c/ID` one of them, and after that the panel:
 * `/timeline/TURN`, `/artifacts`, `/usage`, or `/replay/TURN` and the fork in which it ran again.
 * `/at/POSITION` shows one message.
 */

import {Problem, Unreachable, decoded, get, hasToken, setToken, takeToken} from "./api.js";
import {readArtifacts} from "./artifacts.js";
import {textOf} from "./blocks.js";
import {Chat} from "./chat.js";
import {Composer} from "./composer.js";
import {Conversation, isAway, later} from "./conversation.js";
import {announce, confirmed, fill, h, renew} from "./dom.js";
import {Others} from "./others.js";
import {Replay} from "./replay.js";
import {Sidebar, statusOf} from "./sidebar.js";
import {counted, shortened, shown} from "./text.js";
import {Timeline} from "./timeline.js";
import {readUsage} from "./usage.js";

const TABS = /** @type {const} */ (["timeline", "artifacts", "usage"]);
const PANELS = /** @type {const} */ ([...TABS, "replay"]);
const TITLES = {timeline: "Timeline", artifacts: "Artifacts", usage: "Usage", replay: "Replay"};
const LIVE_MS = 1000;
const REFUSED = "The server does not know this token.";
const RUNS = "A turn runs here. Stop it, then delete the conversation.";
const ABSENT = "There is no conversation of this name. It begins with your first message.";

class App {
  constructor() {
    this.root = /** @type {HTMLElement} */ (document.getElementById("app"));
    /** @type {Conversation | null} */
    this.conversation = null;
    /** @type {Chat | null} */
    this.chat = null;
    this.panel = "";
    this.turn = 0;
    this.fork = "";
    /** @type {Replay | null} */
    this.replay = null;
    /** @type {Timeline | null} */
    this.timeline = null;
    this.lost = false;
    /** The error in the alert. @type {unknown} */
    this.told = null;
    this.drawAfter = 0;
    /** @type {Element | null} what had the focus when the panel was opened */
    this.opener = null;
    this.draws = 0; // of the panel, as far as they have begun
    this.drawn = 0; // the newest of them that may fill it
    const actions = {
      problem: (/** @type {unknown} */ error) => this.problem(error),
      edit: (/** @type {string} */ text, /** @type {string} */ id) =>
        this.composer.giveBack(text, id),
    };
    this.actions = actions;
    this.others = new Others(actions);
    this.isOthers = false; // what others wait for is shown
    this.sidebar = new Sidebar(actions, this.others.link);
    this.composer = new Composer(actions);
    this.title = h("h2", {class: "chat-title", tabindex: -1});
    this.facts = h("div", {class: "chat-facts"});
    this.tabs = new Map(
      TABS.map((panel) => [panel, h("a", {class: "button quiet"}, TITLES[panel])]),
    );
    const erase = () => this.erase().catch(actions.problem);
    const remove = h("button", {type: "button", class: "quiet", onclick: erase}, "Delete");
    this.tools = h("div", {class: "chat-tools"}, [...this.tabs.values()], remove);
    this.alert = h("div", {class: "alert", role: "alert", hidden: true});
    this.place = h("div", {class: "chat-place"});
    this.panelHead = h("header", {class: "panel-head"});
    this.panelBody = h("div", {
      class: "panel-body",
      tabindex: 0,
      role: "region",
      "aria-label": "Details",
    });
    this.main = h(
      "main",
      {class: "chat"},
      h(
        "header",
        {class: "chat-head"},
        h("a", {class: "back", href: "#/", "aria-label": "Conversations"}, "‹"),
        h("div", {class: "names"}, this.title, this.facts),
        this.tools,
      ),
      this.alert,
      this.place,
      this.composer.element,
    );
    this.composer.attachments.watch(this.main);
    this.aside = h(
      "aside",
      {class: "panel", "aria-label": "Details of the conversation"},
      this.panelHead,
      this.panelBody,
    );
  }

  async begin() {
    document.querySelector(".skip")?.addEventListener("click", (event) => this.skip(event));
    takeToken();
    addEventListener("hashchange", () => this.moved());
    if (!(await this.signedIn())) return this.login(hasToken());
    fill(this.root, this.sidebar.element, this.main, this.aside);
    setInterval(() => this.tick(), LIVE_MS);
    void this.others.load().catch(() => {});
    this.route();
  }

  /** The address has changed: to a view, or to the link that signs in. */
  moved() {
    if (takeToken()) return location.reload();
    for (const one of document.querySelectorAll("dialog")) one.close(""); // it is about another view
    if (this.main.isConnected) this.route();
  }

  /** False if the server wants a token; while it is away, it is asked again. */
  async signedIn() {
    for (let tries = 0; ; tries += 1) {
      try {
        await get("contexts?limit=1");
        return true;
      } catch (error) {
        if (error instanceof Problem && error.status === 401) return false;
        const back = isAway(error);
        const refused = error instanceof Problem ? error : null;
        const text = back ? away(refused) : /** @type {Error} */ (error).message;
        fill(this.root, h("p", {class: "empty", role: "status"}, text));
        if (!back) throw error;
        await later(tries, error);
      }
    }
  }

  /** Ask for the token. @param {boolean} [refused] the tab has one, which the server refused */
  login(refused = false) {
    const input = h("input", {type: "password", id: "token", autocomplete: "off", required: true});
    const said = h("p", {class: "error", role: "alert"}, refused && REFUSED);
    const enter = async (/** @type {Event} */ event) => {
      event.preventDefault();
      setToken(input.value);
      if (await this.signedIn()) return location.reload();
      if (!input.isConnected) return this.login(); // the server was away
      fill(said, REFUSED);
      input.select();
    };
    fill(
      this.root,
      h(
        "main",
        {class: "login"},
        h("img", {src: "ui/icon.svg", alt: "", width: 48, height: 48}),
        h("h1", {}, "looopy"),
        h(
          "p",
          {},
          "Open the link that ",
          h("code", {}, "looopy serve"),
          " printed, or paste its token.",
        ),
        h(
          "form",
          {onsubmit: enter},
          h("label", {for: "token"}, "Token"),
          input,
          said,
          h("button", {class: "main"}, "Enter"),
        ),
      ),
    );
    input.focus();
  }

  /** Show what the address names. */
  route() {
    const [, kind = "", id = "", rest = "", number = "", fork = ""] = location.hash.split("/");
    const name = kind === "c" ? decoded(id) : kind === "new" ? newId() : "";
    if (kind === "new") {
      history.replaceState(null, "", `#/c/${name}`);
      return this.show(name, true);
    }
    this.panel = PANELS.includes(/** @type {any} */ (rest)) ? rest : "";
    this.turn = ["timeline", "replay"].includes(rest) ? Number(number) || 0 : 0;
    this.fork = decoded(fork);
    this.isOthers = kind === "requests";
    if (!name) this.leave();
    else if (name !== this.conversation?.id)
      this.show(name, false, rest === "at" ? Number(number) : 0);
    else if (rest === "at") this.chat?.reveal(Number(number)).catch(this.actions.problem);
    this.layout();
  }

  /** Go to the message field, or to the panel that covers it. @param {Event} event */
  skip(event) {
    event.preventDefault(); // its address names no conversation
    const places = [this.composer.input, this.panelBody];
    places.find((one) => one.checkVisibility())?.focus();
  }

  layout() {
    document.body.dataset.context = this.conversation ? "yes" : this.isOthers ? "others" : "no";
    document.body.dataset.panel = this.conversation?.record ? this.panel : "";
    this.heading();
    this.drawPanel().catch(this.actions.problem);
  }

  leave() {
    this.conversation?.close();
    this.conversation = this.chat = null;
    this.sidebar.select("");
    void this.sidebar.budget.load("");
    document.title = this.isOthers ? "Waits for your decision · looopy" : "looopy";
    fill(this.place, this.isOthers ? this.others.element : this.welcome());
    void this.others.load().catch(this.actions.problem);
  }

  welcome() {
    return h(
      "div",
      {class: "welcome"},
      h("img", {src: "ui/icon.svg", alt: "", width: 56, height: 56}),
      h("h2", {}, "Agents that outlive their process"),
      h(
        "p",
        {},
        "Choose a conversation, or begin a new one. Each step is stored before you see it: kill the server in the middle of a turn, start it, and continue here.",
      ),
      h("a", {class: "button main", href: "#/new"}, "New conversation"),
    );
  }

  /** @param {string} id @param {boolean} fresh @param {number} [position] to show */
  show(id, fresh, position = 0) {
    this.conversation?.close();
    const conversation = new Conversation(id);
    const problem = this.problemIn(conversation);
    const chat = new Chat(conversation, {...this.actions, problem});
    this.conversation = conversation;
    this.chat = chat;
    this.lost = false;
    this.problem(null);
    this.sidebar.select(id);
    this.composer.attach(conversation);
    conversation.addEventListener("change", (event) =>
      this.changed(conversation, /** @type {any} */ (event).detail),
    );
    fill(this.place, chat.element);
    if (fresh) {
      conversation.absent = true;
      this.panel = "";
      chat.all();
      fill(
        chat.after,
        h("p", {class: "empty"}, "A new conversation. It begins with your first message."),
      );
      this.layout();
      this.composer.focus();
      return;
    }
    conversation
      .open()
      .then(() => (position ? chat.reveal(position) : undefined))
      .catch(problem);
  }

  /** @param {Conversation} conversation @param {{what: string, value: any}} change */
  changed(conversation, {what, value}) {
    if (conversation !== this.conversation) return;
    if (what === "lost") this.gone(value);
    if (what === "absent" && this.chat) fill(this.chat.after, h("p", {class: "empty"}, ABSENT));
    if (what === "connection") this.reached(conversation);
    if (["all", "record", "turn", "connection", "absent"].includes(what)) {
      document.body.dataset.panel = conversation.record ? this.panel : "";
      this.heading();
      this.composer.update();
    }
    if (what === "turn" || what === "all") this.sidebar.load().catch(() => {});
    if (["all", "record", "turn"].includes(what))
      void this.sidebar.budget.load(conversation.record ? conversation.id : "");
    if (["turn", "all"].includes(what) || (what === "artifacts" && this.panel === "artifacts")) {
      this.drawPanel().catch(this.actions.problem);
    }
  }

  /** Show once that the server is away, and that it is back. @param {Conversation} conversation */
  reached({connected, refused}) {
    if (connected === !this.lost) return;
    this.lost = !connected;
    announce(connected ? "The server answers again." : away(refused));
    if (connected && this.told instanceof Unreachable) this.problem(null);
  }

  /** The server no longer shows the conversation. @param {Problem} problem */
  gone(problem) {
    this.lost = false;
    this.heading();
    if (problem.code !== "context_not_found") return this.problem(problem);
    location.hash = "#/";
    this.problem(new Error("This conversation was deleted."));
  }

  /** The timeline of a running turn grows while it is looked at; a long one more seldom. */
  async tick() {
    const looked = this.main.isConnected && !document.hidden;
    const wanted = looked && this.panel === "timeline" && this.conversation?.running;
    const began = performance.now();
    if (!wanted || began < this.drawAfter) return;
    this.drawAfter = Infinity;
    await this.drawPanel().catch(() => {});
    const ended = performance.now();
    this.drawAfter = ended + 10 * (ended - began);
  }

  heading() {
    const {conversation} = this;
    const record = conversation?.record;
    const id = encodeURIComponent(conversation?.id ?? "");
    const said = conversation?.first ? textOf(conversation.first.message) : "";
    const unnamed = conversation?.absent ? "New conversation" : (conversation?.id ?? "");
    const name = said ? shortened(said, 80) : unnamed;
    fill(this.title, name);
    if (conversation) document.title = `${shown(name)} · looopy`;
    const words = /** @type {Record<string, string>} */ ({
      running: "Running",
      waiting: record?.waits_for ? "Waits for the budget" : "Waits for you",
      failed: "Failed",
      interrupted: "Unfinished",
      paused: "Paused",
      resting: "At rest",
      ready: "Ready",
    });
    const status = record ? statusOf(record) : "";
    fill(
      this.facts,
      record && !this.lost ? h("span", {class: `chip ${status}`}, words[status]) : null,
      record && !this.lost ? h("span", {class: "faint lease"}, lease(conversation)) : null,
      this.lost
        ? h("span", {class: "chip failed"}, away(conversation?.refused ?? null))
        : null,
    );
    this.tools.hidden = !record;
    for (const [panel, tab] of this.tabs) {
      tab.href = panel === this.panel ? `#/c/${id}` : `#/c/${id}/${panel}`;
      if (panel === this.panel) tab.setAttribute("aria-current", "true");
      else tab.removeAttribute("aria-current");
    }
  }

  async erase() {
    const {conversation} = this;
    if (!conversation) return;
    const name = shortened(this.title.textContent ?? "", 40);
    const text = "Its messages, artifacts and events are erased for good.";
    if (!(await confirmed(`Delete the conversation “${name}”?`, text, "Delete"))) return;
    await conversation.erase().catch((error) => {
      throw error.code === "agent_busy" ? new Error(RUNS) : error;
    });
    conversation.close();
    announce("The conversation was deleted");
    if (this.conversation === conversation) location.hash = "#/";
    this.problem(null); // its stream may have reported first
  }

  /** Fill the panel, unless something newer fills it before the answers are here. */
  async drawPanel() {
    const draw = (this.draws += 1);
    const {conversation, panel} = this;
    if (panel !== "replay") this.leaveReplay();
    const turn = this.turn || (conversation?.record?.turn_count ?? 0);
    const focused = document.activeElement;
    this.namePanel(turn, draw);
    this.passFocus(focused);
    this.placeAlert();
    if (!conversation?.record || !panel) return;
    if (panel === "replay") return this.showReplay(conversation);
    try {
      const show = await this.readPanel(conversation, turn);
      if (draw < this.drawn) return;
      this.drawn = draw;
      renew(this.panelBody, show());
    } catch (error) {
      if (draw >= this.drawn) throw error; // the others are not shown any more
    }
  }

  /** Begin again if the panel is another one; earlier answers come too late. */
  namePanel(/** @type {number} */ turn, /** @type {number} */ draw) {
    const {conversation, panel, panelHead} = this;
    const isThere = conversation?.record && panel;
    const id = encodeURIComponent(conversation?.id ?? "");
    const title = isThere ? TITLES[/** @type {keyof typeof TITLES} */ (panel)] : "";
    const name = panel === "replay" ? `${title} of turn ${turn}` : title;
    const subject = isThere ? `${id}/${panel}/${turn}` : "";
    if (panelHead.dataset.subject !== subject) this.drawn = draw;
    if (subject && !panelHead.dataset.subject) this.opener = document.activeElement;
    panelHead.dataset.subject = subject;
    if (!isThere) return fill(this.panelBody);
    if (panelHead.dataset.name === name && panelHead.dataset.id === id) return;
    Object.assign(panelHead.dataset, {name, id});
    const close = h("a", {class: "button quiet", href: `#/c/${id}`}, "Close");
    fill(panelHead, h("h2", {tabindex: -1}, name), close);
    fill(this.panelBody);
  }

  /**
   * Move the focus if what had it is hidden now: on a small screen, one part hides the others.
   *
   * @param {Element | null} had
   */
  passFocus(had) {
    if (!had || had === document.body || had.checkVisibility()) return;
    const heads = [this.panelHead.querySelector("h2"), this.opener, this.title];
    const listed = [this.sidebar.list.querySelector("[aria-current]"), this.sidebar.input];
    const places = /** @type {(HTMLElement | null)[]} */ ([...heads, ...listed]);
    places.find((one) => one?.checkVisibility())?.focus();
  }

  /**
   * Read what the panel needs.
   *
   * @param {Conversation} conversation
   * @param {number} turn
   * @returns {Promise<() => import("./dom.js").Child[]>} what it shows then
   */
  readPanel(conversation, turn) {
    if (this.panel === "timeline") {
      if (this.timeline?.conversation !== conversation)
        this.timeline = new Timeline(conversation, this.panelBody);
      return this.timeline.read(turn);
    }
    if (this.panel === "usage") return readUsage(conversation);
    const shown = this.panelBody.querySelectorAll(".artifacts > li").length;
    return readArtifacts(conversation, shown, this.problemIn(conversation));
  }

  /** It lives on while the address stays: drawing it again would run it again. */
  showReplay(/** @type {Conversation} */ conversation) {
    const turn = this.turn || conversation.record.turn_count;
    const {replay, fork} = this;
    if (replay?.conversation === conversation && replay.turn === turn && replay.fork === fork)
      return;
    this.leaveReplay();
    this.replay = new Replay(conversation, turn, fork, this.actions.problem);
    fill(this.panelBody, this.replay.element);
    if (fork) this.sidebar.load().catch(() => {}); // it is in the list now
  }

  leaveReplay() {
    this.replay?.close();
    this.replay = null;
  }

  /** Shows what went wrong in a conversation while it is open. @param {Conversation} conversation */
  problemIn(conversation) {
    return (/** @type {unknown} */ error) => {
      if (conversation === this.conversation) this.problem(error);
    };
  }

  /** Show what went wrong, or clear it. @param {unknown} error */
  problem(error) {
    if (error instanceof Problem && error.status === 401)
      return this.main.isConnected ? void this.login(hasToken()) : undefined;
    if (error instanceof Unreachable && this.lost) return announce(error.message);
    this.told = error;
    const text = error instanceof Error ? error.message : "";
    this.alert.hidden = !text;
    const close = h(
      "button",
      {type: "button", class: "quiet small", onclick: () => this.problem(null)},
      "Dismiss",
    );
    this.placeAlert();
    fill(this.alert, text ? [h("span", {}, text), close] : []);
  }

  /** Below the head of what is shown: on a small screen, a panel or the list hides the chat. */
  placeAlert() {
    const parts = [this.main, this.aside, this.sidebar.element];
    const head = parts.find((one) => one.checkVisibility())?.firstElementChild;
    if (head && head.nextElementSibling !== this.alert) head.after(this.alert);
  }
}

/** Why nothing new comes. @param {Problem | null} refused */
function away(refused) {
  if (!refused) return "The server does not answer. Reconnecting…";
  if (refused.status !== 429) return "The server has a problem. Trying again…";
  return `The server takes no more for now: ${refused.message}. Trying again…`;
}

/** Who holds the conversation, by the name that logs, traces and the timeline have. @param {any} of */
function lease({record, turns}) {
  if (!record.lease) {
    const hidden = record.hidden_messages;
    const rewound = hidden ? ` (${counted(hidden, "message")} hidden by a rewind)` : "";
    const all = counted(record.turn_count, "turn");
    return record.turn_count ? `${all}${rewound}, no process holds it` : "";
  }
  const {turn, here, live, cancelling} = record.lease;
  const process = turns.get(turn)?.process ?? record.lease.process;
  const who = here
    ? `process ${process}, this server`
    : `process ${process ?? "elsewhere"}, another one`;
  if (!live) return `Turn ${turn}: its process ${process ?? ""} is gone`;
  return `Turn ${turn} ${cancelling ? "is being cancelled" : "runs"} in ${who}`;
}

function newId() {
  const random = crypto.getRandomValues(new Uint32Array(2));
  return `chat-${[...random].map((one) => one.toString(36)).join("")}`;
}

new App().begin().catch((error) => console.error(error));
