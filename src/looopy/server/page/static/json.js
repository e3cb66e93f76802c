/**
 * JSON whose whole numbers stay exact, however many digits they have.
 *
 * A number of JavaScript holds whole numbers up to 2^53. One beyond is read as a `Long`, which keeps
 * its digits and is written as them. Browsers from before 2025 cannot do that: there it is rounded
 * as it is read, `isRounded` finds it, and `written` refuses to send it.
 */

const platform = /** @type {any} */ (JSON); // newer than its types
const MAY_BE_LONG = /(?:^|[[:,\s])-?\d{16}/; // to look at each number takes its time
const EXACT =
  typeof platform.rawJSON === "function" && platform.parse("1", source) === "1";

/** A whole number beyond 2^53: it counts as the nearest number, and is shown and sent exactly. */
export class Long extends Number {
  /** @param {string} text its digits */
  constructor(text) {
    super(text);
    this.text = String(BigInt(text)); // without zeros at its beginning
  }

  toString() {
    return this.text;
  }

  toJSON() {
    return platform.rawJSON(this.text);
  }
}

/** Read JSON. @param {string} text @returns {any} */
export function parsed(text) {
  return EXACT && MAY_BE_LONG.test(text) ? platform.parse(text, kept) : JSON.parse(text);
}

/** JSON to send. @param {any} value @throws {Error} if a number in it is not what it was */
export function written(value) {
  if (isRounded(value))
    throw new Error(
      "This browser rounds a number in it, as it has too many digits. So it was not sent." +
        " Browsers from 2025 on send it exactly.",
    );
  return JSON.stringify(value);
}

/** The number that a person typed. @param {string} text @returns {number | Long} */
export function numberOf(text) {
  return EXACT && isLong(Number(text), text) ? new Long(text) : Number(text);
}

/** True if this browser may have rounded a whole number in it. @param {any} value @returns {boolean} */
export function isRounded(value) {
  if (EXACT) return false;
  if (typeof value === "number") return Math.abs(value) > Number.MAX_SAFE_INTEGER;
  return typeof value === "object" && value !== null && Object.values(value).some(isRounded);
}

/** @param {string} _key @param {any} _value @param {{source?: string}} [context] */
function source(_key, _value, context) {
  return context?.source;
}

/** @param {string} _key @param {any} value @param {{source: string}} context */
function kept(_key, value, context) {
  return isLong(value, context.source) ? new Long(context.source) : value;
}

/** @param {any} value @param {string} text what was read as it */
function isLong(value, text) {
  if (typeof value !== "number" || Number.isSafeInteger(value)) return false;
  return /^-?\d+$/.test(text);
}
