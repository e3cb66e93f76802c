/**
 * The blocks of a message as elements: text, thinking, pictures, results, and what folds.
 */

import {CLIP} from "./conversation.js";
import {fill, h} from "./dom.js";
import {parsed} from "./json.js";
import {code, markdown} from "./markdown.js";
import {count, pretty, shortened} from "./text.js";

const MOST_PICTURES = 4; // of a call that is folded
const PICTURES = /^image\/(png|jpeg|gif|webp)$/;

/** @param {string} text @param {boolean} [open] */
export function thinking(text, open = false) {
  return folded("Thinking", () => [h("div", {class: "plain"}, text)], open, "thinking");
}

/** What is inside is made when somebody looks. */
export function folded(
  /** @type {string} */ title,
  /** @type {() => Node[]} */ inside,
  open = false,
  kind = "",
) {
  const body = h("div", {class: "fold-body"});
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

/** A tool that the provider ran. @param {any} block */
export function served(block) {
  const title = `${block.name} (run by the provider)`;
  return folded(title, () => [code(pretty(block.arguments ?? block.item), "json")]);
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

/** Text as Markdown; the rest of a text that was cut comes on demand. */
export function prose(
  /** @type {string} */ text,
  /** @type {number | undefined} */ length,
  /** @type {() => Promise<string>} */ whole,
) {
  const made = h("div", {class: "prose", dir: "auto"}, markdown(text));
  if (!length) return made;
  return h(
    "div",
    {},
    made,
    rest(text.length, length, whole, (more) =>
      made.replaceChildren(h("div", {class: "plain"}, more)),
    ),
  );
}

/** A button for the rest of a text, which comes in pieces that a browser can lay out. */
function rest(
  /** @type {number} */ here,
  /** @type {number} */ length,
  /** @type {() => Promise<string>} */ whole,
  /** @type {(text: string) => void} */ put,
) {
  let until = here;
  let text = "";
  const left = () =>
    `Show more: ${count(length - until)} of ${count(length)} characters are folded`;
  const show = async () => {
    button.disabled = true;
    text ||= await whole();
    until = Math.min(length, until + 10 * CLIP);
    put(text.slice(0, until));
    button.textContent = left();
    button.disabled = false;
    button.hidden = until >= length;
  };
  const button = h("button", {type: "button", class: "quiet", onclick: show}, left());
  return button;
}

/** The blocks of a user's message. */
export function blocksOf(
  /** @type {any} */ message,
  /** @type {any} */ entry,
  /** @type {() => Promise<string>} */ whole,
) {
  if (typeof message.content === "string") {
    const length = entry.clipped?.["/content"];
    const text = h("div", {class: "plain"}, message.content);
    return length
      ? [text, rest(message.content.length, length, whole, (more) => fill(text, more))]
      : [text];
  }
  return message.content.map((/** @type {any} */ block) => blockOf(block));
}

/** @param {any} block */
function blockOf(block) {
  if (block.type === "text") return h("div", {class: "plain"}, block.text);
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

/** @param {import("./conversation.js").Entry} entry @param {() => Promise<string>} whole */
export function resultBlocks(entry, whole) {
  const {content} = entry.message;
  if (typeof content === "string") return [code(content, "text")];
  return content.map((/** @type {any} */ block, /** @type {number} */ i) => {
    if (block.type !== "text") return blockOf(block);
    const length = entry.clipped?.[`/content/${i}/text`];
    const made = h("div", {}, code(indented(block.text), "text"));
    if (!length) return made;
    const put = (/** @type {string} */ more) => made.replaceChildren(code(more, "text"));
    return h("div", {}, made, rest(block.text.length, length, whole, put));
  });
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
