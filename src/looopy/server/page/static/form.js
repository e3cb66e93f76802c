/**
 * A form for a JSON Schema: a field for each simple property, JSON for all others.
 *
 * The server checks what is sent against the same schema, so a form may be simpler than its schema.
 * An unchanged field reads the very value that it began with, whatever the browser made of it: it
 * ends lines by \n alone, and empties a date that is in no calendar.
 */

import {fill, h} from "./dom.js";
import {Long, numberOf, parsed} from "./json.js";
import {pretty, shown} from "./text.js";

let made = 0;

/** @typedef {{element: HTMLElement, read: () => any}} Field `read` throws what is wrong */

/**
 * @param {any} schema
 * @param {any} value what it begins with
 * @param {string} label
 * @returns {Field}
 */
export function formOf(schema, value, label) {
  if (!schema?.properties || (value !== undefined && !isObject(value)))
    return fieldOf(plainOf(schema, schema), value, label);
  let fields = fieldsOf(schema, value);
  const simple = h("div", {class: "fields"});
  const draw = () => fill(simple, fields.map(({field}) => field.element));
  draw();
  const raw = jsonField(value ?? {}, `${label} as JSON`);
  const body = h("div", {}, simple);
  let asJson = false;
  const read = () => {
    if (asJson) return raw.read();
    const said = fields.map(({name, field}) => [name, field.read()]);
    return Object.fromEntries(said.filter(([, one]) => one !== undefined));
  };
  const flip = h("button", {type: "button", class: "quiet small", onclick: turn}, "Edit as JSON");
  const wrong = h("p", {class: "error", role: "alert"});
  function turn() {
    try {
      const said = read();
      if (!asJson) raw.write(said);
      else if (isObject(said)) fields = fieldsOf(schema, said);
      else throw new Error("Fields need an object");
      fill(wrong);
    } catch (error) {
      fill(wrong, /** @type {Error} */ (error).message); // what was typed stays
      return;
    }
    asJson = !asJson;
    if (!asJson) draw();
    fill(body, asJson ? raw.element : simple);
    flip.textContent = asJson ? "Edit as fields" : "Edit as JSON";
  }
  return {element: h("div", {class: "form"}, body, flip, wrong), read};
}

/**
 * A field for each property of a schema, and for what else is there.
 *
 * @param {any} schema
 * @param {any} value
 */
function fieldsOf(schema, value) {
  const {properties} = schema;
  const names = [...new Set([...Object.keys(properties), ...Object.keys(value ?? {})])];
  const required = new Set(schema.required ?? []);
  return names.map((name) => {
    const inner = plainOf(own(properties, name) ?? {}, schema);
    const field = fieldOf(inner, own(value, name), inner.title ?? name, required.has(name));
    return {name, field};
  });
}

/**
 * The schema that a reference names; of "this or null", this.
 *
 * @param {any} schema
 * @param {any} root
 * @param {number} [depth] a schema may name itself
 * @returns {any}
 */
function plainOf(schema, root, depth = 0) {
  if (!isObject(schema) || depth > 8) return {};
  const {$ref, anyOf, ...plain} = schema;
  const named = own(root.$defs, String($ref ?? "").replace("#/$defs/", ""));
  if (named) return {...plainOf(named, root, depth + 1), ...plain};
  if (!Array.isArray(anyOf)) return schema;
  const others = anyOf.filter((one) => one?.type !== "null");
  if (others.length !== 1) return schema;
  const nullable = others.length < anyOf.length;
  return {...plainOf(others[0], root, depth + 1), ...plain, nullable};
}

/**
 * @param {any} schema
 * @param {any} value
 * @param {string} label
 * @param {boolean} [required]
 * @returns {Field}
 */
function fieldOf(schema, value, label, required = true) {
  const kind = kindOf(schema, value);
  if (kind === "json") return jsonField(value, label, required, schema?.description);
  const id = `field-${(made += 1)}`;
  const note = schema?.description;
  const about = {id, "aria-describedby": note ? `${id}-note` : null};
  /** @param {any} input @param {() => any} said what a person entered @returns {Field} */
  const fieldWith = (input, said) => {
    const name = labelOf(id, label, required);
    const element = h("div", {class: `field of-${kind}`}, name, input, notes(id, note, value));
    return {element, read: unlessKept(input, value, said)};
  };
  const unsaid = schema.default; // the tool's value for an empty field
  const begins = unsaid === undefined || unsaid === null ? "" : pretty(unsaid);
  /** The value of an empty field. @param {any} [otherwise] */
  const empty = (otherwise) => {
    if (value === "" && kind === "text") return ""; // as it was
    if (value === null || (required && schema.nullable)) return null;
    if (!required) return undefined;
    if (otherwise === undefined) throw new Error(`${label} is missing`);
    return otherwise;
  };
  if (kind === "choice") {
    const options = schema.enum ?? [];
    const select = h(
      "select",
      about,
      required && value !== undefined && value !== null
        ? null
        : h("option", {value: ""}, begins ? `— (${begins})` : "—"),
      options.map((/** @type {any} */ one, /** @type {number} */ i) =>
        h("option", {value: String(i), selected: same(one, value)}, pretty(one)),
      ),
    );
    return fieldWith(select, () => (select.value === "" ? empty() : options[Number(select.value)]));
  }
  if (kind === "boolean") {
    const first = (value ?? unsaid) === true;
    const box = h("input", {type: "checkbox", ...about, checked: first});
    const untouched = () => !required && (value ?? null) === null && box.checked === first;
    return fieldWith(box, () => (untouched() ? empty() : box.checked));
  }
  if (kind === "number") {
    const step = schema.type === "integer" ? 1 : "any";
    const bounds = {step, min: schema.minimum, max: schema.maximum, placeholder: begins};
    const input = h("input", {type: "number", ...bounds, ...about, value: value ?? ""});
    return fieldWith(input, () => {
      if (!input.checkValidity()) throw new Error(`${label}: ${input.validationMessage}`);
      if (input.value === "") return empty();
      const isPlain = /^-?\d+$/.test(input.value) || Number.isSafeInteger(Number(input.value));
      if (step === 1 && !isPlain)
        throw new Error(`${label}: write such a long number in digits alone`); // it was rounded
      return numberOf(input.value);
    });
  }
  const text = String(value ?? "");
  const more = {autocomplete: "off", placeholder: begins, ...about, value: text};
  const date = h("input", {type: "date", ...more});
  const input =
    text.length > 60 || text.includes("\n")
      ? h("textarea", {rows: 4, ...more})
      : schema.format === "date" && date.value === text
        ? date
        : h("input", {type: "text", ...more});
  const lines = () => (text.includes("\r") ? input.value.replaceAll("\n", "\r\n") : input.value);
  return fieldWith(input, () => (input.value === "" ? empty("") : lines()));
}

/**
 * A function that reads a control: its first value as long as it is unchanged.
 *
 * @param {any} input
 * @param {any} value undefined: it began without one
 * @param {() => any} said
 */
function unlessKept(input, value, said) {
  const now = () => (input.type === "checkbox" ? input.checked : input.value);
  const first = now();
  return () => (value !== undefined && now() === first ? value : said());
}

/** @param {any} schema @param {any} value */
function kindOf(schema, value) {
  if (Array.isArray(schema?.enum)) {
    const offered = schema.enum.some((/** @type {any} */ one) => same(one, value));
    return offered || (value ?? null) === null ? "choice" : "json";
  }
  const type = schema?.type;
  const shape = value instanceof Long ? "number" : typeof value;
  const fits = (/** @type {string} */ one) => (value ?? null) === null || shape === one;
  if (type === "boolean" && fits("boolean")) return "boolean";
  if ((type === "integer" || type === "number") && fits("number")) return "number";
  if (type === "string" ? fits("string") : type === undefined && typeof value === "string")
    return hasMixedLines(value ?? "") ? "json" : "text";
  return "json"; // also a value that its schema does not allow: a field would hide it
}

/** True if its lines end in several ways, which no control keeps. @param {string} text */
function hasMixedLines(text) {
  return text.includes("\r") && /[\r\n]/.test(text.replaceAll("\r\n", ""));
}

/** @param {string} id @param {string} label @param {boolean} required */
function labelOf(id, label, required) {
  return h("label", {for: id}, label, required ? null : h("span", {class: "faint"}, " (optional)"));
}

/**
 * The note below a field.
 *
 * @param {string} id
 * @param {string | undefined} note
 * @param {any} value
 */
function notes(id, note, value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const hidden = text !== undefined && shown(text) !== text.replaceAll("\r\n", "\n");
  return [
    note ? h("small", {id: `${id}-note`}, note) : null,
    hidden ? h("small", {class: "warn"}, "It has hidden characters: ", h("code", {}, text)) : null,
  ];
}

/**
 * @param {any} value
 * @param {string} label
 * @param {boolean} [required]
 * @param {string} [note]
 * @returns {Field & {write: (next: any) => void}}
 */
function jsonField(value, label, required = true, note = undefined) {
  const id = `field-${(made += 1)}`;
  const said = value === undefined ? "" : JSON.stringify(value, null, 2);
  const rows = Math.min(8, Math.max(2, said.split("\n").length));
  const about = {id, "aria-describedby": note ? `${id}-note` : null, spellcheck: "false"};
  const input = h("textarea", {rows, class: "mono", ...about, value: said});
  const name = labelOf(id, `${label} (JSON)`, required);
  const element = h("div", {class: "field json"}, name, input, notes(id, note, value));
  const read = unlessKept(input, value, () => {
    if (!required && !input.value.trim()) return undefined;
    try {
      return parsed(input.value);
    } catch (error) {
      throw new Error(`${label}: ${/** @type {Error} */ (error).message}`);
    }
  });
  const write = (/** @type {any} */ next) => (input.value = JSON.stringify(next, null, 2));
  return {element, read, write};
}

/** @param {any} value */
function isObject(value) {
  if (Array.isArray(value) || value instanceof Long) return false;
  return typeof value === "object" && value !== null;
}

/**
 * An object's own property of this name: all of them inherit a `constructor`.
 *
 * @param {any} from
 * @param {string} name
 */
function own(from, name) {
  return from && Object.hasOwn(from, name) ? from[name] : undefined;
}

/** True if two JSON values are equal. @param {any} one @param {any} other @returns {boolean} */
export function same(one, other) {
  if (!isObject(one) || !isObject(other)) {
    if (Array.isArray(one) && Array.isArray(other)) {
      return one.length === other.length && one.every((item, i) => same(item, other[i]));
    }
    if (one instanceof Long && other instanceof Long) return one.text === other.text;
    return one === other;
  }
  const names = Object.keys(one);
  const fits = names.every((name) => Object.hasOwn(other, name) && same(one[name], other[name]));
  return fits && names.length === Object.keys(other).length;
}
