/**
 * A form for a JSON Schema: a field for each simple property, JSON for all others.
 *
 * The server checks what is sent against the same schema, so a form may be simpler than its schema.
 */

import {fill, h} from "./dom.js";
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
  const properties = schema?.properties;
  if (!properties || (value !== undefined && !isObject(value)))
    return fieldOf(schema, value, label);
  const names = [...new Set([...Object.keys(properties), ...Object.keys(value ?? {})])];
  const required = new Set(schema.required ?? []);
  const fields = names.map((name) => {
    const inner = properties[name] ?? {};
    return {name, field: fieldOf(inner, value?.[name], inner.title ?? name, required.has(name))};
  });
  const simple = h(
    "div",
    {class: "fields"},
    fields.map(({field}) => field.element),
  );
  const raw = jsonField(value ?? {}, `${label} as JSON`);
  const body = h("div", {}, simple);
  let asJson = false;
  const read = () => {
    if (asJson) return raw.read();
    const said = fields.map(({name, field}) => [name, field.read()]);
    return Object.fromEntries(said.filter(([, one]) => one !== undefined));
  };
  const flip = h("button", {type: "button", class: "quiet small", onclick: turn}, "Edit as JSON");
  function turn() {
    if (!asJson) /** @type {any} */ (raw).write(read());
    asJson = !asJson;
    fill(body, asJson ? raw.element : simple);
    flip.textContent = asJson ? "Edit as fields" : "Edit as JSON";
  }
  return {element: h("div", {class: "form"}, body, flip), read};
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
  const id = `field-${(made += 1)}`;
  const note = schema?.description;
  const hidden = typeof value === "string" && shown(value) !== value;
  const about = {id, "aria-describedby": note ? `${id}-note` : null};
  const around = (/** @type {HTMLElement} */ input) =>
    h(
      "div",
      {class: `field of-${kind}`},
      h("label", {for: id}, label, required ? null : h("span", {class: "faint"}, " (optional)")),
      input,
      note ? h("small", {id: `${id}-note`}, note) : null,
      hidden
        ? h("small", {class: "warn"}, "It has hidden characters: ", h("code", {}, value))
        : null,
    );
  const missing = () => new Error(`${label} is missing`);
  if (kind === "choice") {
    const options = schema.enum ?? [];
    const select = h(
      "select",
      about,
      required && value !== undefined ? null : h("option", {value: ""}, "—"),
      options.map((/** @type {any} */ one, /** @type {number} */ i) =>
        h("option", {value: String(i), selected: same(one, value)}, pretty(one)),
      ),
    );
    const read = () => {
      if (select.value !== "") return options[Number(select.value)];
      if (required) throw missing();
      return undefined;
    };
    return {element: around(select), read};
  }
  if (kind === "boolean") {
    const box = h("input", {type: "checkbox", ...about, checked: value === true});
    return {element: around(box), read: () => box.checked};
  }
  if (kind === "number") {
    const step = schema.type === "integer" ? 1 : "any";
    const input = h("input", {type: "number", step, ...about, value: value ?? ""});
    const read = () => {
      if (input.value === "" && !required) return undefined;
      if (input.value === "" || !input.checkValidity())
        throw new Error(`${label} must be a number`);
      return Number(input.value);
    };
    return {element: around(input), read};
  }
  if (kind === "text") {
    const long = String(value ?? "").length > 60 || String(value ?? "").includes("\n");
    const input = long
      ? h("textarea", {rows: 4, ...about, value: value ?? ""})
      : h("input", {type: "text", autocomplete: "off", ...about, value: value ?? ""});
    return {
      element: around(input),
      read: () => (input.value === "" && !required ? undefined : input.value),
    };
  }
  const raw = jsonField(value, label);
  const read = () =>
    raw.element.querySelector("textarea")?.value.trim() || required ? raw.read() : undefined;
  return {element: raw.element, read};
}

/** @param {any} schema @param {any} value */
function kindOf(schema, value) {
  if (Array.isArray(schema?.enum)) return "choice";
  const type = schema?.type;
  if (type === "boolean") return "boolean";
  if (type === "integer" || type === "number") return "number";
  if (type === "string" || (type === undefined && typeof value === "string")) return "text";
  return "json";
}

/** @param {any} value @param {string} label */
function jsonField(value, label) {
  const id = `field-${(made += 1)}`;
  const said = value === undefined ? "" : JSON.stringify(value, null, 2);
  const input = h("textarea", {id, rows: 6, class: "mono", spellcheck: "false", value: said});
  const element = h("div", {class: "field json"}, h("label", {for: id}, `${label} (JSON)`), input);
  const read = () => {
    try {
      return JSON.parse(input.value);
    } catch (error) {
      throw new Error(`${label}: ${/** @type {Error} */ (error).message}`);
    }
  };
  const write = (/** @type {any} */ next) => (input.value = JSON.stringify(next, null, 2));
  return {element, read, write};
}

/** @param {any} value */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** True if two JSON values are equal. @param {any} one @param {any} other @returns {boolean} */
export function same(one, other) {
  if (!isObject(one) || !isObject(other)) {
    if (Array.isArray(one) && Array.isArray(other)) {
      return one.length === other.length && one.every((item, i) => same(item, other[i]));
    }
    return one === other;
  }
  const names = Object.keys(one);
  const fits = names.every((name) => name in other && same(one[name], other[name]));
  return fits && names.length === Object.keys(other).length;
}
