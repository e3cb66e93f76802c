/**
 * Files that go with a message: chosen, pasted or dropped, and measured before they are sent.
 */

import {get} from "./api.js";
import {announce, fill, h} from "./dom.js";
import {counted, shortened, size} from "./text.js";

const MOST_FILES = 20;
const ROOM_FOR_TEXT = 4096; // bytes of a body beside its files
/** Types that some systems do not know, though a model reads them. */
const KINDS = /** @type {Record<string, string>} */ ({
  csv: "text/csv",
  json: "application/json",
  md: "text/markdown",
  pdf: "application/pdf",
});

/** @typedef {{name: string, size: number, block: any}} Attached */

export class Attachments {
  /** @param {{problem: (error: unknown) => void}} actions @param {() => void} changed */
  constructor(actions, changed) {
    this.actions = actions;
    this.changed = changed;
    /** @type {Attached[]} */
    this.files = [];
    this.limit = 0; // of a body, in bytes; 0: not known yet
    this.round = 0; // a file that is read when its conversation has gone belongs to no other
    this.picker = h("input", {
      type: "file",
      multiple: true,
      hidden: true,
      onchange: () => this.picked(),
    });
    this.button = h(
      "button",
      {
        type: "button",
        class: "quiet attach",
        onclick: () => this.picker.click(),
        onfocus: () => void this.know().catch(() => {}),
        onpointerenter: () => void this.know().catch(() => {}),
      },
      "Attach",
    );
    this.list = h("ul", {class: "attached", "aria-label": "Attached files", hidden: true});
  }

  /** Take files that are pasted into or dropped on an element. @param {HTMLElement} place */
  watch(place) {
    const has = (/** @type {DataTransfer | null} */ data) => data?.types.includes("Files");
    place.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length || event.clipboardData?.types.includes("text/plain")) return;
      event.preventDefault();
      void this.add(files);
    });
    place.addEventListener("dragover", (event) => {
      if (!has(event.dataTransfer)) return;
      event.preventDefault();
      place.classList.add("dropping");
    });
    for (const name of ["dragleave", "drop"])
      place.addEventListener(name, () => place.classList.remove("dropping"));
    place.addEventListener("drop", (event) => {
      if (!has(event.dataTransfer)) return;
      event.preventDefault(); // or the browser would leave the page
      void this.add([...(event.dataTransfer?.files ?? [])]);
    });
  }

  picked() {
    const files = [...this.picker.files];
    this.picker.value = ""; // the same file may be chosen again
    void this.add(files);
  }

  /** @param {File[]} files */
  async add(files) {
    const {round} = this;
    try {
      await this.know();
      for (const file of files) if (round === this.round) await this.attach(file, round);
      if (round !== this.round) return;
      announce(`${counted(this.files.length, "file")} attached. ${this.room()}`);
    } catch (error) {
      if (round !== this.round) return;
      this.actions.problem(error);
    }
    this.draw();
    this.changed();
  }

  /** Read the limit of the server, once. */
  async know() {
    this.limit ||= (await get("openapi.json"))["x-looopy-limits"].body_bytes;
    this.button.title = `This server takes ${size(this.most)} of files with a message`;
  }

  /** @param {File} file @param {number} round in which it was chosen */
  async attach(file, round) {
    const name = file.name || "pasted";
    if (!file.size) throw new Error(`${name} is empty, or a folder`);
    if (this.files.length >= MOST_FILES)
      throw new Error(`A message takes ${MOST_FILES} files from this page`);
    if (file.size > this.most - this.taken)
      throw new Error(
        `${name} has ${size(file.size)} and does not fit: this server takes ${size(this.most)} of files with a message${this.taken ? `, and ${size(this.most - this.taken)} are left` : ""}`,
      );
    const raw = new Uint8Array(await file.arrayBuffer());
    if (round !== this.round) return;
    const kind = typeOf(file, raw);
    const data = base64(raw);
    const family = kind.split("/")[0];
    const type = family === "image" || family === "audio" ? family : "document";
    const named = type === "document" ? {name} : {};
    this.files.push({name, size: file.size, block: {type, data, mime_type: kind, ...named}});
  }

  /** Bytes of files that a message may have: base64 makes four of three. */
  get most() {
    return Math.max(0, Math.floor(((this.limit - ROOM_FOR_TEXT) * 3) / 4));
  }

  get taken() {
    return this.files.reduce((sum, one) => sum + one.size, 0);
  }

  room() {
    return `${size(this.taken)} of ${size(this.most)} that this server takes`;
  }

  /** The message with its files. @param {string} text @returns {string | {content: any[]}} */
  message(text) {
    if (!this.files.length) return text;
    const said = text ? [{type: "text", text}] : [];
    return {content: [...said, ...this.files.map((one) => one.block)]};
  }

  clear() {
    this.round += 1;
    this.files = [];
    this.draw();
  }

  /** Those that were sent. @param {Attached[]} files */
  remove(files) {
    this.files = this.files.filter((one) => !files.includes(one));
    this.draw();
  }

  draw() {
    this.list.hidden = !this.files.length;
    const drop = (/** @type {Attached} */ one) => () => {
      this.remove([one]);
      announce(`${one.name} removed`);
      this.changed();
      (this.list.querySelector("button") ?? this.button).focus();
    };
    fill(
      this.list,
      this.files.map((one) =>
        h(
          "li",
          {class: "chip"},
          preview(one),
          h("span", {class: "name"}, shortened(one.name, 40)),
          h("span", {class: "faint"}, size(one.size)),
          h(
            "button",
            {
              type: "button",
              class: "link",
              "aria-label": `Remove ${one.name}`,
              onclick: drop(one),
            },
            "✕",
          ),
        ),
      ),
    );
  }
}

/** @param {Attached} one */
function preview({block}) {
  if (!/^image\/(png|jpeg|gif|webp)$/.test(block.mime_type)) return null;
  return h("img", {src: `data:${block.mime_type};base64,${block.data}`, alt: "", class: "thumb"});
}

/** @param {File} file @param {Uint8Array} raw */
function typeOf(file, raw) {
  const ending = /\.([a-z0-9]+)$/i.exec(file.name)?.[1]?.toLowerCase() ?? "";
  if (file.type) return file.type;
  if (KINDS[ending]) return KINDS[ending];
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(raw);
    return text.includes("\0") ? "application/octet-stream" : "text/plain";
  } catch {
    return "application/octet-stream";
  }
}

/** @param {Uint8Array} raw */
function base64(raw) {
  let text = "";
  for (let i = 0; i < raw.length; i += 0x8000)
    text += String.fromCharCode(...raw.subarray(i, i + 0x8000));
  return btoa(text);
}
