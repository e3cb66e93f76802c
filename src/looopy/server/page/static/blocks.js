/**
 * The blocks of a message as elements: text, thinking, pictures, results, and what folds.
 */

import {at, get} from "./api.js";
import {CLIP} from "./conversation.js";
import {fill, h} from "./dom.js";
import {parsed} from "./json.js";
import {code, markdown} from "./markdown.js";
import {count, pretty, shortened} from "./text.js";

const MOST_PICTURES = 4; // of a call that is folded
const PIECE = 10 * CLIP; // characters that a browser can lay out at once
const PICTURES = /^image\/(png|jpeg|gif|webp)$/;

/** @typedef {(pointer: string) => Promise<any>} Whole reads a part of a message that was cut */
/** @typedef {(text: string) => import("./dom.js").Child} Draw */

/** @param {string} id of the conversation @param {number} position @returns {Whole} */
export function wholeOf(id, position) {
  return async (pointer) => {
    const {message} = await get(at(id, `/messages/${position}`));
    const [, ...names] = pointer.split("/");
    return names.reduce((inside, name) => inside[name], message);
  };
}

/** @param {string} text */
export function plain(text) {
  return h("div", {class: "plain"}, text);
}

/** @param {() => Node} inside @param {boolean} [open] */
export function thinking(inside, open = false) {
  return folded("Thinking", () => [inside()], open, "thinking");
}

/** Its contents are made when it opens. */
export function folded(
  /** @type {string} */ title,
  /** @type {() => Node[]} */ inside,
  open = false,
  kind = "",
) {
  const scrolls = kind ? {tabindex: 0, role: "group", "aria-label": title} : {};
  const body = h("div", {class: "fold-body", ...scrolls});
  const look = () => {
    if (made.open && !body.firstChild) fill(body, inside());
  };
  const made = h(
    "details",
    {class: `fold ${kind}`, open, ontoggle: look},
    h("summary", {}, title),
    body,
  );
  look();
  return made;
}

/** A tool that the provider ran. */
export function served(
  /** @type {any} */ block,
  /** @type {import("./conversation.js").Entry} */ entry,
  /** @type {string} */ pointer,
  /** @type {Whole} */ whole,
) {
  const title = `${block.name} (run by the provider)`;
  const name = (block.arguments ?? null) === null ? "item" : "arguments";
  return folded(title, () => [json(entry, `${pointer}/${name}`, block[name], whole)]);
}

/** @param {any[]} citations */
export function sources(citations) {
  const items = citations
    .filter((one) => /^https?:\/\//.test(one.url ?? ""))
    .map((one) =>
      h(
        "li",
        {},
        h("a", {href: one.url, target: "_blank", rel: "noopener noreferrer"}, one.title || one.url),
      ),
    );
  return items.length ? h("ul", {class: "sources"}, items) : h("span");
}

/**
 * A text of a message; the rest of one that was cut comes on demand.
 *
 * @param {import("./conversation.js").Entry} entry
 * @param {string} pointer where in the message it is
 * @param {string} text
 * @param {Whole} whole
 * @param {Draw} [draw] draws it
 * @param {Draw} [drawMore] draws it once more of it is there
 */
export function textIn(entry, pointer, text, whole, draw = plain, drawMore = draw) {
  const length = entry.clipped?.[pointer];
  const made = h("div", {}, draw(text));
  if (!length) return made;
  const put = (/** @type {string} */ more) => fill(made, drawMore(more));
  const read = () => whole(pointer);
  return h("div", {}, made, rest(charactersIn(text), length, read, put));
}

/** Text as Markdown. */
export function prose(
  /** @type {import("./conversation.js").Entry} */ entry,
  /** @type {string} */ pointer,
  /** @type {string} */ text,
  /** @type {Whole} */ whole,
) {
  const draw = (/** @type {string} */ one) =>
    h("div", {class: "prose", dir: "auto"}, markdown(one));
  return textIn(entry, pointer, text, whole, draw, plain);
}

/**
 * A value in a message as JSON, such as the arguments of a call. Texts in it may be cut.
 *
 * @param {{clipped?: Record<string, number>}} entry
 * @param {string} pointer
 * @param {any} value
 * @param {Whole} whole
 */
export function json(entry, pointer, value, whole) {
  const made = h("div", {}, code(pretty(value), "json"));
  const inside = Object.keys(entry.clipped ?? {}).filter((one) =>
    `${one}/`.startsWith(`${pointer}/`),
  );
  if (!inside.length) return made;
  const here = charactersIn(pretty(value));
  const folded = inside.reduce((sum, one) => sum + (entry.clipped?.[one] ?? 0) - CLIP, 0);
  const put = (/** @type {string} */ more) => fill(made, code(more, "json"));
  const read = async () => pretty(await whole(pointer));
  return h("div", {}, made, rest(here, here + folded, read, put));
}

/**
 * A button for the rest of a text, which comes in pieces that a browser can lay out.
 *
 * @param {number} here characters that are shown
 * @param {number} length of the whole text, as far as it is known
 * @param {() => Promise<string>} whole
 * @param {(text: string) => void} put
 */
function rest(here, length, whole, put) {
  let until = here;
  let text = "";
  const left = () =>
    `Show more: ${count(length - until)} of ${count(length)} characters are folded`;
  const wrong = h("p", {class: "error", role: "alert"});
  const show = async () => {
    button.disabled = true;
    fill(wrong);
    try {
      text ||= await whole();
      length = charactersIn(text);
      until = Math.min(length, until + PIECE);
      put(text.slice(0, endOf(text, until)));
      fill(button, left());
      button.hidden = until >= length;
    } catch (error) {
      fill(wrong, /** @type {Error} */ (error).message);
    } finally {
      button.disabled = false;
    }
  };
  const button = h("button", {type: "button", class: "quiet rest", onclick: show}, left());
  return [button, wrong];
}

/** How long a text is for the server: there, an emoji is one character. @param {string} text */
function charactersIn(text) {
  let found = 0;
  for (let i = 0; i < text.length; i += widthAt(text, i)) found += 1;
  return found;
}

/** The place after so many characters of a text. @param {string} text @param {number} characters */
function endOf(text, characters) {
  let end = 0;
  for (let i = 0; i < characters; i += 1) end += widthAt(text, end);
  return end;
}

/** @param {string} text @param {number} i */
function widthAt(text, i) {
  return /** @type {number} */ (text.codePointAt(i)) > 0xffff ? 2 : 1;
}

/** The blocks of a user's message. */
export function blocksOf(
  /** @type {any} */ message,
  /** @type {any} */ entry,
  /** @type {Whole} */ whole,
) {
  if (typeof message.content === "string")
    return [textIn(entry, "/content", message.content, whole)];
  return message.content.map((/** @type {any} */ block, /** @type {number} */ i) =>
    block.type === "text" ? textIn(entry, `/content/${i}/text`, block.text, whole) : blockOf(block),
  );
}

/** A block without text. @param {any} block */
function blockOf(block) {
  if (block.type === "image") return picture(block);
  const name = block.name || block.mime_type || block.type;
  return h("p", {class: "faint"}, `${block.type}: ${name}`);
}

/** A picture whose bytes are here; one at an address is never fetched. @param {any} block */
function picture(block) {
  if (!block.data)
    return h(
      "p",
      {class: "faint"},
      `A picture at ${shortened(block.url ?? "an address", 200)}, not loaded`,
    );
  if (!PICTURES.test(block.mime_type))
    return h("p", {class: "faint"}, `A picture of the type ${block.mime_type}`);
  return h("img", {
    class: "picture",
    src: `data:${block.mime_type};base64,${block.data}`,
    alt: "Picture in the conversation",
    loading: "lazy",
  });
}

/** The first pictures of a result, beside a call that is folded. @param {any[]} content */
export function picturesOf(content) {
  return content
    .filter((one) => one.type === "image" && one.data && PICTURES.test(one.mime_type))
    .slice(0, MOST_PICTURES)
    .map(picture);
}

/** @param {import("./conversation.js").Entry} entry @param {Whole} whole */
export function resultBlocks(entry, whole) {
  const {content} = entry.message;
  const draw = (/** @type {string} */ text) => code(indented(text), "text");
  if (typeof content === "string") return [textIn(entry, "/content", content, whole, draw)];
  return content.map((/** @type {any} */ block, /** @type {number} */ i) =>
    block.type === "text"
      ? textIn(entry, `/content/${i}/text`, block.text, whole, draw)
      : blockOf(block),
  );
}

/** JSON with line breaks; any other text as it is. @param {string} text */
function indented(text) {
  if (!/^[[{]/.test(text)) return text;
  try {
    return JSON.stringify(parsed(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {any} message */
export function textOf(message) {
  if (typeof message.content === "string") return message.content;
  return message.content.map((/** @type {any} */ one) => one.text ?? "").join("");
}
