/**
 * Texts, numbers and times as people read them.
 */

// Controls that a terminal obeys, marks that turn all that follows them around, and letters of no
// shape, which only a model would read: tags, selectors of a variant, invisible operators,
// and several joiners in a row. Ordinary are a few such letters in some flags, and one selector
// after an emoji or a letter of Chinese or Japanese. The marks that people write in Arabic and
// Hebrew (U+200E, U+200F, U+061C) act on what is beside them alone.
const FLAG = /\u{1f3f4}[\u{e0030}-\u{e0039}\u{e0061}-\u{e007a}]{3,6}\u{e007f}/u.source;
const EMOJI = /\p{Emoji}[\ufe0e\ufe0f]/u.source;
const IDEOGRAPH = /\p{Unified_Ideograph}[\ufe00-\ufe02\u{e0100}-\u{e01ef}]/u.source;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/u.source;
const SHAPELESS = /[\u2061-\u2064\u206a-\u206f\ufe00-\ufe0f\u{e0000}-\u{e01ef}]/u.source;
const REPEATED = /(?<=[\u200b-\u200d\u2060\ufeff])[\u200b-\u200d\u2060\ufeff]/u.source;
const FOUND = new RegExp(
  `(${FLAG}|${EMOJI}|${IDEOGRAPH})|${CONTROL}|${SHAPELESS}|${REPEATED}`,
  "gu",
);

/**
 * The text with every control character made visible, so that what is shown is what is there.
 *
 * @param {string} text
 */
export function shown(text) {
  return text.replace(/\r\n/g, "\n").replace(FOUND, (one, ordinary) => {
    if (ordinary) return one;
    const code = one.codePointAt(0) ?? 0;
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : `⟨${code.toString(16).toUpperCase()}⟩`;
  });
}

/** @param {string} text @param {number} most */
export function shortened(text, most) {
  const line = text
    .slice(0, most * 4)
    .replace(/\s+/g, " ")
    .trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** JSON as people read it. @param {unknown} value */
export function pretty(value) {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}

/** @param {number} value */
export function count(value) {
  return value.toLocaleString("en");
}

/** 1 call, 2 calls. @param {number} value @param {string} noun */
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** @param {number} value */
export function compactCount(value) {
  return value.toLocaleString("en", {notation: "compact", maximumFractionDigits: 1});
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const power = Math.min(3, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(1)} ${["B", "kB", "MB", "GB"][power]}`;
}

/** When the model is called again. @param {number} wait in milliseconds */
export function again(wait) {
  const seconds = Math.ceil(wait / 1000);
  if (!seconds) return "Trying again.";
  return `Trying again in ${seconds < 60 ? `${seconds} s` : duration(seconds)}.`;
}

/** Seconds as a duration. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** True if the cost of a usage, or of a part of it, is unknown. @param {any} usage */
export function lacksPrice(usage) {
  return usage?.cost === null || usage?.cost?.complete === false;
}

/** The cost of several usages, as `cost` shows it. @param {any[]} usages */
export function costOfAll(usages) {
  const total = usages.reduce((sum, usage) => sum + (usage?.cost?.total ?? 0), 0);
  return cost({cost: {total, complete: !usages.some(lacksPrice)}});
}

/** The cost of a usage; empty if it costs nothing, or no part is known. @param {any} usage */
export function cost(usage) {
  const total = usage?.cost?.total;
  if (!total) return "";
  const known = `$${total < 0.01 ? total.toPrecision(2) : total.toFixed(2)}`;
  return usage.cost.complete === false ? `${known} + unknown` : known;
}

/** @param {string | number | Date} moment */
export function clock(moment) {
  return new Date(moment).toLocaleTimeString("en-GB");
}

/** A moment near or far, in a few characters. @param {string | number} moment */
export function when(moment) {
  const then = new Date(moment);
  const days = (Date.now() - then.getTime()) / 86_400_000;
  if (days < 1 && then.getDate() === new Date().getDate()) {
    return then.toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit"});
  }
  const year = days > 300 ? /** @type {const} */ ("numeric") : undefined;
  return then.toLocaleDateString("en-GB", {day: "numeric", month: "short", year});
}

/** True if a turn ended to wait for a budget. @param {any} turn */
export function lacksRoom(turn) {
  return turn.outcome === "input_required" && turn.stop_reason === "budget";
}

/** @param {{outcome?: string | null, stop_reason?: string | null}} turn */
export function outcomeText(turn) {
  const {outcome} = turn;
  if (lacksRoom(turn)) return "waits for the budget";
  if (turn.stop_reason === "max_iterations") return "ended at the limit of its steps";
  const words = /** @type {Record<string, string>} */ ({
    completed: "completed",
    failed: "failed",
    cancelled: "cancelled",
    input_required: "waits for an answer",
    auth_required: "needs credentials",
    interrupted: "interrupted, its process ended",
  });
  return words[outcome ?? ""] ?? "runs";
}
