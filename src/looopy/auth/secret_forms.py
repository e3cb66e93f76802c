"""
The forms of a secret: as it is, and as programs encode text for each other.

If a secret is part of a longer text that is then encoded as base64, it may begin at any of three
places of a group of characters, and each gives other text. So the search uses the part that all
such texts have in common: the characters that depend on the bytes of the secret alone.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import string
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MASK = "[redacted]"
LEAST = 8
"""
A text with fewer characters is no secret: hiding it would hide ordinary words, and guessing it is
easy.
"""
_MAX_DEPTH = 16
# Compiled when a turn has a secret: that takes longer than importing the module.
_SCHEME = r"(?i)\s*(?:bearer|basic|token|apikey|digest)\s+(\S+)\s*"
_URL_LOGIN = r"://[^/?#@:\s]*:([^/?#@\s]+)@"
_NAME = r"(?i)key|token|secret|passw|credential|auth|cookie|session"


def names_a_secret(name: str) -> bool:
    """True if the value of a header or variable of this *name* is likely to be a secret."""
    return re.search(_NAME, name) is not None


def forms_of(secret: Any) -> tuple[set[str], set[bytes]]:
    """
    Every form of every secret in *secret*.

    Args:
        secret: Text, bytes, an object with `get_secret_value()`, or mappings, sequences, sets,
            dataclasses and pydantic models of these. Keys of mappings are names, not secrets.

    Returns:
        The texts to search for, and the further ones to search for in bytes. Both are empty if
        *secret* holds no text of at least 8 characters.
    """
    texts: set[str] = set()
    raw: set[bytes] = set()
    for one in _secrets_in(secret, 1):
        if isinstance(one, str):
            texts |= _forms_of_text(one)
            data = one.encode("utf-8", "surrogatepass")
        else:
            data = one
            texts |= _forms_of_text(_decoded(one))
        raw.add(data)
        texts |= _forms_of_bytes(data)
    # A part of the mask would be found in it again.
    return {t for t in texts if len(t) >= LEAST and t not in MASK}, raw


def _secrets_in(value: Any, depth: int) -> Iterator[str | bytes]:
    if depth > _MAX_DEPTH or value is None:
        return
    if isinstance(value, str):
        yield from (part for part in _parts(value) if len(part) >= LEAST)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        if len(data := bytes(value)) >= LEAST:
            yield data
    elif callable(reveal := getattr(value, "get_secret_value", None)):
        yield from _secrets_in(reveal(), depth + 1)
    else:
        for part in members_of(value):
            yield from _secrets_in(part, depth + 1)


def members_of(value: Any) -> list[Any]:
    """The parts of *value*, as far as they can be read without running its code."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, f.name, None) for f in dataclasses.fields(value)]
    if hasattr(type(value), "model_fields"):  # a pydantic model
        return list(vars(value).values())
    return []


def _parts(text: str) -> set[str]:
    """The secret itself, and what of a header or a URL is one when it stands alone."""
    parts = {text, text.strip()}
    if scheme := re.fullmatch(_SCHEME, text):
        parts.add(scheme[1])
    for password in re.findall(_URL_LOGIN, text):
        parts |= {password, unquote(password)}
    return parts


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _forms_of_text(text: str) -> set[str]:
    data = text.encode("utf-8", "surrogatepass")
    forms = {text, repr(text)[1:-1], _both_quotes(text), repr(data)[2:-1], _both_quotes(data)}
    for _within in range(2):  # JSON within JSON or `repr`: arguments in a body, a body in a log
        forms |= {shown for form in forms for shown in _quoted(form)}
    forms |= {form.replace("/", "\\/") for form in forms}
    for escaped in set(_escaped_in_json(text)):
        forms |= {escaped, escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1]}
    for entities in set(_as_entities(text)):
        for page in (entities, json.dumps(entities)[1:-1]):  # by itself, and within JSON
            forms |= {page, page.replace("&", "\\u0026")}
    for percent in _percent_encoded(data):
        forms |= {percent, re.sub("%..", lambda found: found[0].lower(), percent)}
    return forms


# JSON encoders differ in what they write as \uXXXX without need: Go; Gson; PHP; .NET; those that
# leave letters and digits alone. Each with and without non-ASCII characters, in either kind of
# digits.
_ESCAPED = ("<>&\u2028\u2029", "<>&'=", "<>&'\"", "<>&'\"+`\x7f", string.punctuation)


def _escaped_in_json(text: str) -> Iterator[str]:
    for also, ascii_alone, digits in product(_ESCAPED, (False, True), ("04x", "04X")):
        yield "".join(_escaped_character(c, also, digits, ascii_alone) for c in text)


def _escaped_character(char: str, also: str, digits: str, ascii_alone: bool) -> str:
    if char in also or (ascii_alone and not char.isascii()):
        units = char.encode("utf-16-be", "surrogatepass")
        pairs = zip(units[::2], units[1::2], strict=True)
        return "".join(f"\\u{high * 256 + low:{digits}}" for high, low in pairs)
    return json.dumps(char, ensure_ascii=False)[1:-1]


# Templates escape the five characters of HTML, and some escape others as well.
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
_MARKUP = (
    _NAMED,
    _NAMED | {"'": "&#x27;"},  # Python
    _NAMED | {"'": "&#39;"},
    _NAMED | {"'": "&#039;"},  # PHP
    _NAMED | {"'": "&apos;"},  # XML
    _NAMED | {"'": "&#39;", '"': "&#34;"},  # Go
    _NAMED | {"'": "&#39;", '"': "&#34;", "+": "&#43;"},  # its templates
    _NAMED | {"'": "&#x27;", "/": "&#x2F;"},  # OWASP
    _NAMED | {"'": "&#39;", "/": "&#x2F;", "`": "&#x60;", "=": "&#x3D;"},  # Mustache
)


def _as_entities(text: str) -> Iterator[str]:
    for markup, strange in product(_MARKUP, ("", "&#{:d};", "&#x{:x};", "&#x{:X};")):
        yield "".join(
            markup.get(c) or (strange.format(ord(c)) if strange and not c.isascii() else c)
            for c in text
        )
    for every in ("&#{:d};", "&#x{:x};", "&#x{:X};"):
        yield "".join(c if c.isascii() and c.isalnum() else every.format(ord(c)) for c in text)
    from html.entities import codepoint2name  # compiles a pattern; most turns have no secret

    yield "".join(
        f"&{codepoint2name[ord(c)]};" if ord(c) in codepoint2name else c for c in text
    )


def _percent_encoded(data: bytes) -> Iterator[str]:
    # Without "~" by itself: `encodeURIComponent`, `encodeURI`, and the path of Go.
    for safe in ("", "/", "!*'()", "!*'();,/?:@&=+$#", "$&+=:@"):
        yield quote(data, safe=safe)
    for safe in ("", "/", "*", "!*()"):  # forms: Python, and others that encode "~"
        encoded = quote_plus(data, safe=safe)
        yield encoded
        yield encoded.replace("~", "%7E")


def _quoted(text: str) -> Iterator[str]:
    yield repr(text)[1:-1]
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]


def _both_quotes(value: str | bytes) -> str:
    """Within the `repr` of *value* and more, where both kinds of quotes occur."""
    both = repr(value + "'\"") if isinstance(value, str) else repr(value + b"'\"")[1:]
    return both[1:-4]


def _forms_of_bytes(data: bytes) -> set[str]:
    forms = {data.hex(), data.hex().upper(), repr(data)[2:-1]}
    padded = base64.b64encode(data).decode()
    plain = {padded, padded.rstrip("=")}
    for before, skipped in enumerate((0, 2, 3)):  # characters that also hold bits of what precedes
        text = base64.b64encode(b"\0" * before + data).decode()
        plain.add(text[skipped : (before + len(data)) * 8 // 6])
    return forms | plain | {form.replace("+", "-").replace("/", "_") for form in plain}
