/**
 * The artifacts of a conversation: listed, looked at as text, table or picture, and downloaded.
 *
 * A page or a drawing that a tool wrote is shown as its source. It never becomes a document.
 */

import {Problem, at, download, get} from "./api.js";
import {fill, h} from "./dom.js";
import {parsed} from "./json.js";
import {code} from "./markdown.js";
import {count, counted, size, when} from "./text.js";

const MOST = 200_000; // bytes that are looked at
const MOST_ROWS = 200;
const MOST_COLUMNS = 100; // a table of thousands would stop the page
const PICTURES = /^image\/(png|jpeg|gif|webp)$/;
const TEXTS =
  /^(text\/|application\/(json|x-ndjson|xml|javascript|x-yaml|yaml|toml|sql)|image\/svg)/;

/**
 * The panel: reads the list.
 *
 * @param {import("./conversation.js").Conversation} conversation
 * @param {number} shown how many are listed now, and shall stay
 * @param {(error: unknown) => void} problem
 * @returns {Promise<() => import("./dom.js").Child[]>} what the panel shows then
 */
export async function readArtifacts(conversation, shown, problem) {
  const list = h("ul", {class: "artifacts"});
  let after = /** @type {string | null} */ ("");
  const more = h("button", {type: "button", class: "quiet", onclick: () => grow().catch(problem)});
  fill(more, "More");
  async function add() {
    const query = `after=${encodeURIComponent(after ?? "")}`;
    const page = await get(at(conversation.id, `/artifacts?${query}`));
    list.append(...page.items.map((/** @type {any} */ one) => item(conversation.id, one, problem)));
    after = page.next;
    more.hidden = after === null;
  }
  async function grow() {
    const before = list.children.length;
    await add();
    if (more.hidden) list.children[before]?.querySelector("button").focus();
  }
  do await add();
  while (after !== null && list.children.length < shown);
  const empty = h("p", {class: "empty"}, "No artifacts yet. A tool saves one with its turn.");
  return () => [list.firstChild ? h("div", {class: "listing"}, list, more) : empty];
}

/** @param {string} id @param {any} one @param {(error: unknown) => void} problem */
function item(id, one, problem) {
  const rows = one.rows ? `${count(one.rows)} rows` : "";
  const facts = [
    one.kind,
    rows,
    size(one.size),
    `version ${one.version}`,
    one.status === "complete" ? "" : one.status,
    when(one.created_at),
  ];
  const act = (/** @type {() => Promise<void>} */ doing) => () => doing().catch(problem);
  const about = (/** @type {string} */ verb) => ({"aria-label": `${verb} ${one.artifact_id}`});
  return h(
    "li",
    {},
    h("div", {class: "artifact-name"}, one.artifact_id),
    one.description ? h("p", {}, one.description) : null,
    h("div", {class: "faint"}, facts.filter(Boolean).join(" · ")),
    h(
      "div",
      {class: "actions start"},
      h(
        "button",
        {type: "button", ...about("View"), onclick: act(() => look(id, one, problem))},
        "View",
      ),
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          ...about("Download"),
          onclick: act(() => save(id, one, one.version)),
        },
        "Download",
      ),
    ),
  );
}

/** @param {string} id @param {any} one @param {number} version */
function pathOf(id, one, version) {
  return at(id, `/artifacts/${encodeURIComponent(one.artifact_id)}?version=${version}`);
}

/** @param {string} id @param {any} one @param {number} version */
async function save(id, one, version) {
  const {blob} = await download(pathOf(id, one, version));
  const href = URL.createObjectURL(new Blob([blob], {type: "application/octet-stream"}));
  const name = one.artifact_id.replaceAll("\\", "/").split("/").pop() || "artifact";
  h("a", {href, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/**
 * Show an artifact in a dialog, which shows its own errors.
 *
 * @param {string} id
 * @param {any} one its newest version
 * @param {(error: unknown) => void} problem is called if the person has to sign in again
 */
export async function look(id, one, problem) {
  const error = h("p", {class: "error", role: "alert"});
  const body = h("div", {class: "viewer-body"});
  let shown = one.version;
  let asked = 0;
  const versions = Array.from({length: Math.min(one.version, 200)}, (_, i) => one.version - i);
  const pick = h(
    "select",
    {"aria-label": "Version", onchange: () => show(Number(pick.value))},
    versions.map((number) => h("option", {value: number}, `Version ${number}`)),
  );
  const dialog = h(
    "dialog",
    {class: "viewer", "aria-label": `Artifact ${one.artifact_id}`, onclose: () => dialog.remove()},
    h(
      "header",
      {},
      h("h2", {}, one.artifact_id),
      versions.length > 1 ? pick : null,
      h(
        "button",
        {type: "button", class: "quiet", onclick: () => save(id, one, shown).catch(failed)},
        "Download",
      ),
      h("button", {type: "button", onclick: () => dialog.close()}, "Close"),
    ),
    error,
    body,
  );
  function failed(/** @type {unknown} */ reason) {
    if (!(reason instanceof Problem) || reason.status !== 401)
      return fill(error, /** @type {Error} */ (reason).message);
    dialog.close();
    problem(reason);
  }
  async function show(/** @type {number} */ number) {
    const mine = (asked += 1);
    fill(error);
    try {
      const path = pathOf(id, one, number);
      const found = number === one.version ? one : await get(`${path}&describe=true`);
      const made = await preview(path, found);
      if (mine !== asked) return; // another version was chosen meanwhile
      shown = number;
      fill(body, made);
    } catch (reason) {
      if (mine !== asked) return;
      pick.value = String(shown);
      failed(reason);
    }
  }
  document.body.append(dialog);
  dialog.showModal();
  await show(shown);
}

/** @param {string} path @param {any} one @returns {Promise<Node[]>} */
async function preview(path, one) {
  const kind = one.media_type.split(";")[0].trim().toLowerCase();
  if (PICTURES.test(kind)) {
    const {blob} = await download(path);
    const src = URL.createObjectURL(new Blob([blob], {type: kind}));
    const done = () => URL.revokeObjectURL(src);
    return [
      h("img", {
        src,
        class: "picture",
        alt: one.description || one.artifact_id,
        onload: done,
        onerror: done,
      }),
    ];
  }
  if (!TEXTS.test(kind) && one.kind === "file") {
    return [
      h(
        "p",
        {class: "empty"},
        `${size(one.size)} of ${kind || "bytes"}, which this page does not show. Download it.`,
      ),
    ];
  }
  const {blob, whole} = await download(path, MOST);
  const text = await blob.text();
  const cut = whole ? [] : [first(size(MOST), size(one.size))];
  if (one.kind === "dataset") return [...cut, ...tableOf(text, one.rows)];
  return [...cut, code(kind === "application/json" && whole ? indented(text) : text, kind)];
}

/** A note that a part is left out. @param {string} part @param {string} all */
function first(part, all) {
  return h("p", {class: "faint"}, `The first ${part} of ${all}.`);
}

/** @param {string} text */
function indented(text) {
  try {
    return JSON.stringify(parsed(text), null, 2);
  } catch {
    return text;
  }
}

/** A dataset, as far as it is here. @param {string} text @param {number} total its rows */
function tableOf(text, total) {
  const rows = rowsOf(text);
  const all = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const names = all.slice(0, MOST_COLUMNS);
  const cell = (/** @type {any} */ row, /** @type {string} */ name) => {
    const value = Object.hasOwn(row, name) ? row[name] : ""; // not what all objects inherit
    return typeof value === "object" && value !== null ? JSON.stringify(value) : (value ?? "");
  };
  const head = h(
    "tr",
    {},
    names.map((name) => h("th", {scope: "col"}, name)),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      names.map((name) => h("td", {}, String(cell(row, name)))),
    ),
  );
  const table = h("table", {class: "facts-table"}, h("thead", {}, head), h("tbody", {}, body));
  return [
    rows.length < total ? first(count(rows.length), counted(total, "row")) : null,
    names.length < all.length ? first(count(names.length), counted(all.length, "column")) : null,
    h("div", {class: "scroll", tabindex: 0, role: "group", "aria-label": "Rows"}, table),
  ].filter((one) => one !== null);
}

/** The first rows of a dataset. @param {string} text */
function rowsOf(text) {
  const rows = [];
  for (const line of text.split("\n", MOST_ROWS)) {
    try {
      if (line) rows.push(parsed(line));
    } catch {
      break; // the last one was cut
    }
  }
  return rows;
}
