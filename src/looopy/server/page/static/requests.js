/**
 * Requests of a turn, answered in place: approvals, questions, tools of the user's side.
 */

import {serverNow} from "./api.js";
import {credentials} from "./credentials.js";
import {announce, fill, h} from "./dom.js";
import {formOf, same} from "./form.js";
import {isRounded} from "./json.js";
import {code} from "./markdown.js";
import {duration, pretty} from "./text.js";

const SECOND = "second"; // passes, for the cards of the page
const EXPIRED = "has expired";
const ROUNDED =
  "This browser shows a number rounded here, as it has too many digits. If you approve, the tool" +
  " gets the exact one. Browsers from 2025 on show it, and can change the arguments.";

/** @typedef {(inputs: Record<string, unknown>) => Promise<void>} Answer */

/**
 * The card of a request.
 *
 * @param {any} request
 * @param {Answer} answer
 * @returns {HTMLElement}
 */
export function requestCard(request, answer) {
  const titles = {
    approval: "Waits for your approval",
    input: "Asks you",
    auth: "Needs credentials",
    client_tool: "Asks for a result from you",
  };
  const kind = /** @type {keyof typeof titles} */ (request.kind);
  const {expires_at} = request;
  const error = h("p", {class: "error", role: "alert"});
  const card = h(
    "section",
    {class: "request", "aria-label": `${titles[kind]}: ${request.tool_name}`, tabindex: -1},
    h(
      "header",
      {},
      h("span", {class: "chip wait"}, titles[kind]),
      h("code", {}, request.tool_name),
      expires_at ? h("time", {class: "faint", datetime: expires_at}) : null,
    ),
    h("h3", {}, request.prompt || titles[kind]),
  );
  /** @param {() => Promise<Record<string, unknown>>} inputs */
  const post = async (inputs) => {
    const buttons = card.querySelectorAll("button");
    try {
      fill(error);
      buttons.forEach((/** @type {HTMLButtonElement} */ one) => (one.disabled = true));
      await answer(await inputs());
    } catch (problem) {
      fill(error, /** @type {Error} */ (problem).message);
      buttons.forEach((/** @type {HTMLButtonElement} */ one) => (one.disabled = false));
    }
  };
  const send = (/** @type {() => unknown} */ value) =>
    void post(async () => ({[request.request_id]: await value()}));
  const parts = {approval, input, auth: credentials, client_tool: clientTool};
  const body = h("div", {class: "request-body"}, (parts[kind] ?? input)(request, send));
  card.append(body, error);
  const time = card.querySelector("time");
  const asks = [...body.childNodes];
  let wasOver = false;
  const look = () => {
    const left = leftUntil(time.dateTime);
    if (time.textContent !== left) fill(time, left);
    const isOver = leftUntil(expires_at) === EXPIRED;
    const isSent = card.querySelector("button:disabled") !== null; // its answer is under way
    if (isOver === wasOver || isSent) return;
    wasOver = isOver;
    const hadFocus = body.contains(document.activeElement);
    const go = () => void post(async () => ({}));
    fill(body, isOver ? late(request, go) : asks); // a clock that was wrong may be set right
    if (hadFocus) card.focus();
    if (isOver && card.isConnected) announce(`The request of ${request.tool_name} has expired`);
  };
  if (time) {
    card.addEventListener(SECOND, look);
    look();
  }
  return card;
}

/** The rest of a request that was not answered in time. @param {any} request @param {() => void} go */
function late(request, go) {
  if (request.kind !== "approval")
    return [h("p", {}, "This was not answered in time. A new message gives it up.")];
  const text = "This was not answered in time. Continue, and the model learns that.";
  return [h("p", {}, text), sender(go, "Continue")];
}

/** @param {string} moment at which a request expires */
function leftUntil(moment) {
  const seconds = (Date.parse(moment) - serverNow()) / 1000;
  return seconds > 0 ? `expires in ${duration(seconds)}` : EXPIRED;
}

// The cards that are in the page, and no timer each: after a sleep, timers would be late.
setInterval(() => {
  for (const one of document.querySelectorAll(".request")) one.dispatchEvent(new Event(SECOND));
}, 1000);

/** @param {any} request @param {(value: () => unknown) => void} send */
function approval(request, send) {
  const rounded = isRounded(request.args);
  const editable = request.schema && !rounded && Object.keys(request.args ?? {}).length > 0;
  const form = editable ? formOf(request.schema, request.args, "Arguments") : null;
  const note = h("textarea", {id: `note-${request.request_id}`, rows: 1});
  const approve = h("button", {type: "button", class: "main", onclick: agreed}, "Approve");
  const changed = () => {
    try {
      return form !== null && !same(form.read(), request.args);
    } catch {
      return true;
    }
  };
  const show = () => (approve.textContent = changed() ? "Approve with changes" : "Approve");
  form?.element.addEventListener("input", show);
  function agreed() {
    send(() => {
      const said = /** @type {Record<string, unknown>} */ ({approved: true});
      if (form && changed()) said.args = form.read();
      if (note.value.trim()) said.note = note.value.trim();
      return Object.keys(said).length > 1 ? said : true;
    });
  }
  const denied = () =>
    send(() => {
      const reason = note.value.trim();
      return reason ? {approved: false, reason} : false;
    });
  return [
    form?.element ?? code(pretty(request.args), "arguments"),
    ...(rounded ? [h("p", {class: "faint"}, ROUNDED)] : []),
    h("div", {class: "field"}, h("label", {for: note.id}, "Note or reason, for the model"), note),
    h(
      "div",
      {class: "actions"},
      h("button", {type: "button", class: "danger", onclick: denied}, "Deny"),
      approve,
    ),
  ];
}

/** @param {any} request @param {(value: () => unknown) => void} send */
function input(request, send) {
  if (request.options?.length) {
    const pick = (/** @type {any} */ one) =>
      h("button", {type: "button", onclick: () => send(() => one)}, pretty(one));
    return [h("div", {class: "actions start"}, request.options.map(pick))];
  }
  if (request.schema?.type === "boolean") {
    const say = (/** @type {boolean} */ yes, /** @type {string} */ text) =>
      h("button", {type: "button", class: yes && "main", onclick: () => send(() => yes)}, text);
    return [h("div", {class: "actions"}, say(false, "No"), say(true, "Yes"))];
  }
  const schema = request.schema ?? {type: "string"};
  const form = formOf(schema, undefined, "Your answer");
  return [form.element, sender(() => send(form.read), "Answer")];
}

/** @param {any} request @param {(value: () => unknown) => void} send */
function clientTool(request, send) {
  const form = formOf(request.schema ?? {}, undefined, "Result");
  const failed = () => send(() => ({is_error: true, content: "the user could not run it"}));
  return [
    code(pretty(request.args), "arguments"),
    form.element,
    h(
      "div",
      {class: "actions"},
      h("button", {type: "button", class: "danger", onclick: failed}, "It failed"),
      h("button", {type: "button", class: "main", onclick: () => send(form.read)}, "Send result"),
    ),
  ];
}

/** @param {() => void} act @param {string} text */
function sender(act, text) {
  const button = h("button", {type: "button", class: "main", onclick: act}, text);
  return h("div", {class: "actions"}, button);
}
