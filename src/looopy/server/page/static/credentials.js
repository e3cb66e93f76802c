/**
 * Credentials that a tool asks for: a field that forgets, and encryption for one request alone.
 *
 * The server decrypts with a key that it made for the request, so that neither the log nor anything
 * between sees the credential. Without such a key it goes as it is, in the one request that answers.
 */

import {serverNow} from "./api.js";
import {h} from "./dom.js";
import {parsed, written} from "./json.js";

const LIFE_S = 3600; // after which the server refuses what was encrypted
const LABELS = /** @type {Record<string, string>} */ ({
  oauth2: "The address that you came back to, or the code",
  "api-key": "API key",
  pat: "Access token",
  password: "Password",
});
let made = 0;

/**
 * The parts of a card that asks for credentials.
 *
 * @param {any} request
 * @param {(value: () => unknown) => void} send
 * @returns {Node[]}
 */
export function credentials(request, send) {
  const {auth} = request;
  if (auth?.key && !crypto.subtle) {
    const text =
      "This browser encrypts only on pages that came by HTTPS or from this machine. Open the page in" +
      " one of these ways, or answer by the API.";
    return [h("p", {class: "error"}, text)];
  }
  const state = crypto.randomUUID?.() ?? "";
  const signIn = auth?.type === "oauth2" ? signInLink(auth, state) : null;
  const id = `credential-${(made += 1)}`;
  const input = h("input", {
    type: "password",
    id,
    autocomplete: "off",
    spellcheck: "false",
    "aria-describedby": `${id}-note`,
  });
  const answer = (/** @type {Event} */ event) => {
    event.preventDefault();
    send(async () => {
      const typed = input.value;
      input.value = ""; // whatever comes, it is not here any more
      if (!typed) throw new Error("The field is empty");
      const value = signIn ? codeIn(typed, state) : valueOf(typed, request.schema);
      return auth?.key ? encrypted(value, auth) : value;
    });
  };
  const label = LABELS[auth?.type ?? ""] ?? "Credential";
  const note = auth?.key
    ? "It is encrypted in this browser for this request, and only its tool can read it. The page forgets it at once."
    : "It goes to the server as it is, with this answer alone. Neither stores it.";
  const open = !auth?.key && !isSecureContext;
  return [
    h("p", {}, purpose(auth)),
    ...(signIn ? [signIn] : []),
    h(
      "form",
      {class: "form", autocomplete: "off", onsubmit: answer},
      h(
        "div",
        {class: "field"},
        h("label", {for: id}, isJson(request.schema) ? `${label} (JSON)` : label),
        input,
        h("small", {id: `${id}-note`}, note),
        open
          ? h("small", {class: "warn"}, "This page came without HTTPS: the network can read it.")
          : null,
      ),
      h("div", {class: "actions"}, h("button", {class: "main"}, "Send once")),
    ),
  ];
}

/** @param {any} auth */
function purpose(auth) {
  if (!auth) return "The tool needs it for this call.";
  const scopes = auth.scopes ?? [];
  const wanted = scopes.map((/** @type {string} */ one, /** @type {number} */ i) => [
    i ? ", " : " with ",
    h("code", {}, one),
  ]);
  return h("span", {}, "For ", h("strong", {}, auth.provider || "this call"), wanted, ".");
}

/** @param {any} schema */
function isJson(schema) {
  return Boolean(schema) && schema.type !== "string";
}

/** @param {string} typed @param {any} schema */
function valueOf(typed, schema) {
  if (!isJson(schema)) return typed;
  try {
    return parsed(typed);
  } catch {
    throw new Error("That was no JSON: enter it again"); // the parser's own words would show it
  }
}

/** The page of the provider, in a tab of its own. @param {any} auth @param {string} state */
function signInLink(auth, state) {
  const address = URL.canParse(auth.authorization_endpoint)
    ? new URL(auth.authorization_endpoint)
    : null;
  if (!address || !/^https?:$/.test(address.protocol))
    return h("p", {class: "error"}, "The tool named no address for signing in.");
  const asked = {
    response_type: "code",
    client_id: auth.client_id,
    redirect_uri: auth.redirect_uri,
    code_challenge: auth.code_challenge,
    code_challenge_method: "S256",
    state,
    scope: (auth.scopes ?? []).join(" "),
  };
  for (const [name, value] of Object.entries(asked)) {
    if (value) address.searchParams.set(name, value);
  }
  const props = {href: address.href, target: "_blank", rel: "noopener noreferrer"};
  return h("p", {}, h("a", {class: "button", ...props}, `Sign in at ${address.host}`));
}

/** The code in the address of a callback, or the code itself. @param {string} typed @param {string} state */
function codeIn(typed, state) {
  const text = typed.trim();
  if (!URL.canParse(text)) return text;
  const said = new URL(text).searchParams;
  const code = said.get("code");
  if (!code) throw new Error(`There is no code in this address ${said.get("error") ?? ""}`.trim());
  if (said.get("state") !== state)
    throw new Error("This address belongs to another sign-in: use the link above");
  return code;
}

// --- a compact JWE, ECDH-ES with A256GCM (RFC 7516, RFC 7518) --------------------------------------

/**
 * A credential that only the owner of the request's key can read.
 *
 * @param {unknown} credential
 * @param {any} auth
 */
async function encrypted(credential, auth) {
  const {subtle} = crypto;
  const curve = {name: "ECDH", namedCurve: "P-256"};
  const {kty, crv, x, y} = auth.key;
  const theirs = await subtle.importKey("jwk", {kty, crv, x, y}, curve, false, []);
  const ours = /** @type {CryptoKeyPair} */ (
    await subtle.generateKey(curve, false, ["deriveBits"])
  );
  const epk = await subtle.exportKey("jwk", ours.publicKey);
  const now = Math.floor(serverNow() / 1000);
  const header = {
    alg: "ECDH-ES",
    enc: "A256GCM",
    epk: {kty: epk.kty, crv: epk.crv, x: epk.x, y: epk.y},
    request_id: auth.request_id,
    context_id: auth.context_id,
    iat: now,
    exp: now + LIFE_S,
  };
  const head = base64url(bytes(JSON.stringify(header)));
  const shared = await subtle.deriveBits({name: "ECDH", public: theirs}, ours.privateKey, 256);
  const raw = await subtle.digest("SHA-256", derivation(new Uint8Array(shared)));
  const key = await subtle.importKey("raw", raw, "AES-GCM", false, ["encrypt"]);
  const iv = crypto.getRandomValues(new Uint8Array(12));
  const box = {name: "AES-GCM", iv, additionalData: bytes(head), tagLength: 128};
  const sealed = new Uint8Array(await subtle.encrypt(box, key, bytes(written(credential))));
  const parts = [iv, sealed.slice(0, -16), sealed.slice(-16)].map(base64url);
  return [head, "", ...parts].join(".");
}

/** The input of the one round of Concat KDF that 256 bits need. @param {Uint8Array} shared */
function derivation(shared) {
  const name = bytes("A256GCM");
  const made = new Uint8Array(4 + shared.length + 4 + name.length + 4 + 4 + 4);
  const view = new DataView(made.buffer);
  view.setUint32(0, 1); // the round
  made.set(shared, 4);
  view.setUint32(4 + shared.length, name.length);
  made.set(name, 8 + shared.length); // two empty parties follow
  view.setUint32(made.length - 4, 256); // the length of the key
  return made;
}

/** @param {string} text */
function bytes(text) {
  return new TextEncoder().encode(text);
}

/** @param {Uint8Array} raw */
function base64url(raw) {
  const text = btoa(String.fromCharCode(...raw));
  return text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
