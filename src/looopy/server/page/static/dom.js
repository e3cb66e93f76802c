/**
 * Builds elements. Text becomes text nodes, so that no content is ever read as markup.
 */

import {shown} from "./text.js";

/** @typedef {Node | string | number | null | undefined | false} Child */

const TOLD = ["alt", "aria-label", "placeholder", "title"]; // attributes that people read
const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element: `h("button", {class: "quiet", onclick: act}, "Stop")`.
 *
 * @param {string} tag
 * @param {Record<string, any>} [props] attributes; functions for `onclick` and its like; `true` for
 *   an empty attribute. False, null and undefined leave an attribute out.
 * @param {...(Child | Child[])} children
 * @returns {any} the element
 */
export function h(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/**
 * Make an element of a picture, as `h` does.
 *
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

/**
 * Replace what is in an element.
 *
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren(...nodes(children));
}

/**
 * Replace what is in an element, unless it is the same: what has the focus keeps it.
 *
 * @param {Element} parent
 * @param {...(Child | Child[])} children whose listeners do the same if they look the same
 */
export function refill(parent, ...children) {
  const made = nodes(children);
  const old = [...parent.childNodes];
  const isSame = made.length === old.length && made.every((one, i) => one.isEqualNode(old[i]));
  if (!isSame) parent.replaceChildren(...made);
}

/**
 * Replace the contents of an element under a reader: equal parts stay, and the others keep their
 * open folds, scroll position and focus.
 *
 * @param {HTMLElement} parent
 * @param {...(Child | Child[])} children new ones, or one that is there, in its place
 */
export function renew(parent, ...children) {
  const opened = [...parent.querySelectorAll("details[open] > summary")];
  const scrolled = [...parent.querySelectorAll(".scroll, .picture-scroll")]
    .filter((one) => one.scrollLeft > 0)
    .map((one) => /** @type {[Element, number]} */ ([one, one.scrollLeft]));
  const focused = document.activeElement;
  const isHere = focused !== null && focused !== parent && parent.contains(focused);
  const old = [...parent.childNodes];
  const made = nodes(children);
  made.forEach((one, i) => {
    if (!old[i]) parent.append(one);
    else if (one !== old[i] && !one.isEqualNode(old[i])) old[i].replaceWith(one);
  });
  old.slice(made.length).forEach((one) => one.remove());
  for (const one of opened) alike(parent, one)?.parentElement?.setAttribute("open", "");
  for (const [one, left] of scrolled) alike(parent, one)?.scroll({left});
  if (isHere) alike(parent, focused)?.focus();
}

/**
 * The replacement of an element that is gone.
 *
 * @param {HTMLElement} parent
 * @param {Element} gone
 * @returns {HTMLElement | undefined}
 */
function alike(parent, gone) {
  if (gone.isConnected) return undefined;
  const nameOf = (/** @type {Element} */ one) => one.ariaLabel ?? one.textContent;
  const all = /** @type {HTMLElement[]} */ ([...parent.querySelectorAll(gone.localName)]);
  return all.find((one) => nameOf(one) === nameOf(gone));
}

/** @param {Element} made @param {Record<string, any>} props @param {any[]} children */
function filled(made, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (name === "value") /** @type {any} */ (made).value = value;
    else if (TOLD.includes(name)) made.setAttribute(name, shown(String(value)));
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...nodes(children));
  return made;
}

/** @param {any[]} children @returns {Node[]} */
function nodes(children) {
  return children
    .flat(3)
    .filter((one) => one !== null && one !== undefined && one !== false)
    .map((one) => (one instanceof Node ? one : document.createTextNode(shown(String(one)))));
}

/** Announce it to a screen reader, once. @param {string} text */
export function announce(text) {
  const place = document.getElementById("announcer");
  if (place) place.textContent = shown(text);
}

/**
 * Ask before something is done.
 *
 * @param {string} title
 * @param {string} text
 * @param {string} action the word on the button
 * @returns {Promise<boolean>}
 */
export function confirmed(title, text, action) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      {class: "confirm", "aria-labelledby": "confirm-title", onclose: done},
      h("h2", {id: "confirm-title"}, title),
      h("p", {}, text),
      h(
        "div",
        {class: "actions"},
        h("button", {type: "button", class: "quiet", onclick: () => dialog.close("")}, "Cancel"),
        h("button", {type: "button", class: "main", onclick: () => dialog.close("yes")}, action),
      ),
    );
    function done() {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    }
    document.body.append(dialog);
    dialog.showModal();
  });
}
