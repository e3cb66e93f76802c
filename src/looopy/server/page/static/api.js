/**
 * The HTTP API of the server that this page came from. Nothing else is ever called.
 */

import {parsed, written} from "./json.js";

const ROOT = new URL("../", import.meta.url);
const KEPT = "looopy.token";
const SILENT_MS = 45_000; // of a stream: the server sends something every 15 s
const SENDABLE = /^[\x20-\x7e]+$/; // `fetch` takes no header with another character
let aheadMs = 0; // of the clock of this machine, the server's

/** A refused request: `code` is for programs, `path` the place in what was sent. */
export class Problem extends Error {
  /** @param {number} status @param {any} said @param {number} [after_s] when to come again */
  constructor(status, said, after_s = 0) {
    super(said?.message ?? `the server answered ${status}`);
    this.status = status;
    this.after_s = after_s;
    this.code = said?.code ?? "";
    this.path = said?.path ?? "";
  }
}

/** The server could not be reached. */
export class Unreachable extends TypeError {
  constructor() {
    super("The server does not answer. Try again when it is back.");
  }
}

/**
 * Take the token out of the address, where `looopy serve` put it, and keep it for this tab.
 *
 * @returns {boolean} true if there was one
 */
export function takeToken() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return false;
  setToken(decoded(found[1]));
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

/** A part of the address; empty if it is mangled. @param {string} part */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

/** @param {string} token */
export function setToken(token) {
  sessionStorage.setItem(KEPT, token.trim());
}

/** True if this tab has a token, which the server may refuse. */
export function hasToken() {
  return sessionStorage.getItem(KEPT) !== null;
}

/** @param {Record<string, string>} [more] @returns {Record<string, string>} */
function headers(more = {}) {
  const token = sessionStorage.getItem(KEPT) ?? "";
  return SENDABLE.test(token) ? {...more, Authorization: `Bearer ${token}`} : more;
}

/** Now, by the clock of the server: a machine's may be hours off. */
export function serverNow() {
  return Date.now() + aheadMs;
}

/** A key that makes a repeated request harmless. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint32Array(4))].map((one) => one.toString(36)).join("-");
}

/** The path of a context, or below it. @param {string} id @param {string} [rest] */
export function at(id, rest = "") {
  return `contexts/${encodeURIComponent(id)}${rest}`;
}

/**
 * Send a request.
 *
 * @param {string} method
 * @param {string} path below the root of the server
 * @param {object} [body] sent as JSON
 * @param {Record<string, string>} [more] headers
 * @returns {Promise<any>} the JSON of the answer
 */
export async function call(method, path, body, more = {}) {
  const said = body === undefined ? more : {...more, "Content-Type": "application/json"};
  const options = {method, headers: headers(said), body: body && written(body)};
  const answer = await checked(await fetched(path, options));
  return answer.status === 204 ? null : parsed(await reached(answer.text()));
}

/** @param {string} path */
export function get(path) {
  return call("GET", path);
}

/**
 * Read at most so many bytes of a download; the others are not transferred.
 *
 * @param {string} path
 * @param {number} [most]
 * @returns {Promise<{blob: Blob, whole: boolean}>}
 */
export async function download(path, most = Infinity) {
  const answer = await checked(await fetched(path, {headers: headers()}));
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const parts = [];
  for (let read = 0; ;) {
    const {done, value} = await reached(reader.read());
    if (done) return {blob: new Blob(parts), whole: true};
    parts.push(/** @type {BlobPart} */ (value));
    read += value.length;
    if (read > most) {
      await reader.cancel();
      return {blob: new Blob(parts).slice(0, most), whole: false};
    }
  }
}

/** @param {string} path @param {RequestInit} options */
function fetched(path, options) {
  return reached(fetch(new URL(path, ROOT), options));
}

/** An answer or its body, which may be cut. @template T @param {Promise<T>} coming @returns {Promise<T>} */
async function reached(coming) {
  try {
    return await coming;
  } catch (error) {
    throw error instanceof TypeError ? new Unreachable() : error;
  }
}

/** @param {Response} answer */
async function checked(answer) {
  const date = Date.parse(answer.headers.get("Date") ?? "");
  if (date) aheadMs = date - Date.now();
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  const after_s = Number(answer.headers.get("Retry-After")) || 0; // a date is not a number
  throw new Problem(answer.status, said?.error, after_s);
}

/**
 * One server-sent event: `name` is empty for text of an answer, `id` for what is not stored.
 *
 * @typedef {{id: string, name: string, data: any}} Frame
 */

/**
 * Follow a stream of events until it ends. (`EventSource` could not send the token.)
 *
 * @param {string} path
 * @param {AbortSignal} signal
 * @param {() => void} [opened] called once the server has answered
 * @returns {AsyncGenerator<Frame>}
 */
export async function* follow(path, signal, opened) {
  const silence = new AbortController();
  const within = (/** @type {Promise<any>} */ coming) => {
    const timer = setTimeout(() => silence.abort(new Unreachable()), SILENT_MS);
    return coming.finally(() => clearTimeout(timer));
  };
  const options = {
    headers: headers({Accept: "text/event-stream"}),
    signal: AbortSignal.any([signal, silence.signal]),
  };
  const answer = await checked(await within(fetch(new URL(path, ROOT), options)));
  opened?.();
  const body = /** @type {ReadableStream<any>} */ (answer.body);
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let rest = ""; ;) {
      const {done, value} = await within(reader.read());
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const frame = frameOf(block);
        if (frame.data !== undefined) yield frame;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the stream would continue
  }
}

/** @param {string} block the lines of an event @returns {Frame} */
function frameOf(block) {
  const frame = {id: "", name: "", data: /** @type {any} */ (undefined)};
  for (const line of block.split("\n")) {
    if (line.startsWith("data:")) frame.data = parsed(line.slice(5));
    else if (line.startsWith("event: ")) frame.name = line.slice(7);
    else if (line.startsWith("id: ")) frame.id = line.slice(4);
  }
  return frame;
}
