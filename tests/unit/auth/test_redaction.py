"""What knows a turn's secrets: finds each of them in every form, and touches nothing else."""

from __future__ import annotations

import base64
import copy
import gc
import html
import json
import logging
import pickle
import re
import struct
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretBytes, SecretStr

from looopy import AuthContext
from looopy.auth import secret_forms
from looopy.auth.redaction import Redactor
from looopy.errors import ContextNotFound, LooopyError, RateLimited, ValueRefused
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    DocumentContent,
    ImageContent,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import StreamEvent

SECRET = 'c4nary/+"key"\\ü='
MASK = "[redacted]"


def knowing(*secrets):
    """A redactor for a turn with these credentials."""
    return Redactor(AuthContext("u1", credentials={str(n): s for n, s in enumerate(secrets)}))


# --- what is a secret ----------------------------------------------------------------------------


@dataclass
class Token:
    value: str


@dataclass
class Quiet:
    value: str = field(repr=False)


class Account(BaseModel):
    name: str
    password: SecretStr


SLOTS = {
    "text": "canary-0123",
    "nested": {"a": [{"b": ("canary-0123",)}]},
    "set": {"canary-0123"},
    "bytes": b"canary-0123",
    "bytearray": bytearray(b"canary-0123"),
    "SecretStr": SecretStr("canary-0123"),
    "SecretBytes": [SecretBytes(b"canary-0123")],
    "dataclass": Token("canary-0123"),
    "model": Account(name="x", password=SecretStr("canary-0123")),
    "header": "Bearer canary-0123",
    "URL": "postgresql://user:canary-0123@host/db",
    "padded": "canary-0123\n",
}


@pytest.mark.parametrize("slot", SLOTS)
def test_a_secret_is_found_in_every_slot(slot):
    """However credentials are given, the value itself is known."""
    assert knowing(SLOTS[slot]).text("a canary-0123 b") == f"a {MASK} b"


def test_a_short_value_a_number_or_a_name_is_not_a_secret():
    """Seven characters, a moment in seconds, the key of a mapping: hiding them would hide words."""
    redactor = knowing({"authorization": "s3cret7"}, 1795264215)
    assert redactor.free
    assert redactor.text("authorization s3cret7 1795264215") == "authorization s3cret7 1795264215"


def forms(secret):
    """The texts in which programs show *secret*."""
    data = secret.encode()
    yield secret
    yield data.hex()
    yield data.hex().upper()
    for before in range(3):
        for after in range(3):
            whole = b"x" * before + data + b"y" * after
            yield base64.b64encode(whole).decode()
            yield base64.urlsafe_b64encode(whole).decode()
            yield base64.urlsafe_b64encode(whole).decode().rstrip("=")
    yield quote(secret)
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield json.dumps(secret)
    yield json.dumps(secret, ensure_ascii=False)
    yield json.dumps(json.dumps({"k": secret}))
    yield json.dumps(secret).replace("/", "\\/")
    yield repr(secret)
    yield repr(data)
    yield repr({"both": secret + "'\""})
    for escapes in ("<>&", "<>&'=", "<>&'\"", "<>&'\"+`", '!"#$%&()*+,-./:;<=>?@[]^_`{|}~' + "'\\"):
        for digits in ("04x", "04X"):
            in_json = escaped(secret, escapes, digits)
            yield in_json
            yield json.dumps({"error": in_json})
    yield from entities(secret)
    yield quote(secret, safe="!~*'()")  # encodeURIComponent
    yield quote(secret, safe="!~*'();,/?:@&=+$#")  # encodeURI
    yield quote_plus(secret, safe="*").replace("~", "%7E")  # URLSearchParams
    yield quote(secret, safe="$&+=:@")  # Go's PathEscape
    yield from spelled(secret.encode())
    yield from nested(secret)


def spelled(data):
    """Byte by byte in digits, and in base32 as a part of a longer text."""
    for digits in (data.hex(), data.hex().upper()):
        pairs = [digits[at : at + 2] for at in range(0, len(digits), 2)]
        for between in (" ", ":", "-", "\n", ", ", " : ", "_"):
            yield between.join(pairs)
        yield " ".join("".join(pairs[at : at + 2]) for at in range(0, len(pairs), 2))  # xxd
        for before in ("0x", "\\x", "%", "\\u00", "%25"):
            yield before + before.join(pairs)
        yield "[" + ", ".join("0x" + pair for pair in pairs) + "]"
        yield "".join(f"&#x{pair};" for pair in pairs)
    yield json.dumps(list(data))  # Buffer.toJSON()
    yield "".join(f"&#{byte};" for byte in data)
    for before in range(5):
        for after in range(5):
            yield base64.b32encode(b"x" * before + data + b"y" * after).decode()
    yield base64.b32encode(data).decode().lower().rstrip("=")


def in_small_digits(url):
    """*url*, percent-encoded in `a` to `f`."""
    return re.sub("%(25)*..", lambda found: found[0].lower(), url)


def nested(secret):
    """Encoders within each other, as they meet in practice."""
    data = secret.encode()
    in_json = json.dumps({"k": secret})
    coded = [base64.b64encode(b"user:" + data).decode(), base64.urlsafe_b64encode(data).decode()]
    yield quote(quote(secret, safe=""), safe="")
    yield quote_plus(quote_plus(secret))
    yield quote(quote(quote(secret, safe=""), safe=""), safe="")
    if "%" not in secret:
        yield in_small_digits(quote(quote(quote(secret, safe=""), safe=""), safe=""))
    yield quote(in_json, safe="")
    yield quote(quote(in_json, safe=""), safe="")
    yield quote(json.dumps(in_json), safe="")
    yield html.escape(in_json)
    yield html.escape(html.escape(secret))
    yield quote(html.escape(secret), safe="")
    yield json.dumps({"url": quote(secret, safe=""), "html": html.escape(secret)})
    yield json.dumps(json.dumps(json.dumps(secret)))
    yield repr(json.dumps(secret).encode())
    for one in coded:
        yield quote(one, safe="")
        yield quote(quote(one, safe=""), safe="")
        yield json.dumps(one).replace("/", "\\/")
        yield "\n".join(one[at : at + 76] for at in range(0, len(one), 76))
        yield "\r\n ".join(one[at : at + 12] for at in range(0, len(one), 12))


def escaped(secret, also, digits):
    """JSON with more escapes than it needs, as Go, Gson, PHP and .NET write it."""
    shown = ""
    for char in secret:
        if char in also or not char.isascii():
            data = char.encode("utf-16-be")
            units = struct.unpack(f">{len(data) // 2}H", data)
            shown += "".join(f"\\u{unit:{digits}}" for unit in units)
        else:
            shown += json.dumps(char)[1:-1]
    return shown


def entities(secret):
    """What is put into HTML and XML."""
    python = html.escape(secret)
    yield python
    yield python.encode("ascii", "xmlcharrefreplace").decode()
    for apostrophe in ("&#39;", "&apos;", "&#039;"):
        yield python.replace("&#x27;", apostrophe)
    yield python.replace("&#x27;", "&#39;").replace("&quot;", "&#34;")  # Go
    yield python.replace("&#x27;", "&#39;").replace("&quot;", "&#34;").replace("+", "&#43;")
    yield escape(secret)  # XML
    for form in ("&#{:d};", "&#x{:x};", "&#x{:X};"):
        yield "".join(c if c.isascii() and c.isalnum() else form.format(ord(c)) for c in secret)
    yield json.dumps({"page": python}).replace("&", "\\u0026")


@pytest.mark.parametrize(
    "secret",
    [
        *(SECRET, "plain-canary-7b1f", "8 chars!", "ключ-от-двери", "sk~a'b<c>d&e=f+g`h"),
        *("dGhpc19pc19zZWNyZXQ+/w==", "p&ss+w/rd<1>", "\U0001f511 key & lock"),
    ],
)
def test_every_form_of_a_secret_is_found(secret):
    """Raw, hex, base64 in each place, percent-encoded, JSON of many makers, HTML, `repr`."""
    redactor = knowing(secret)
    for form in forms(secret):
        assert MASK in redactor.text(f"({form})"), form


ANY_SECRET = st.text(st.characters(codec="utf-8"), min_size=8, max_size=60).filter(
    lambda text: len(text.strip()) >= 8 and text.strip() == text and text not in MASK
)
LIKELY_SECRET = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=8)


@given(LIKELY_SECRET | ANY_SECRET, st.data())
def test_every_form_of_any_secret_is_found_in_text_and_in_bytes(secret, data):
    """Each encoder, alone and within others, whatever stands around it."""
    form = data.draw(st.sampled_from([*forms(secret)]))
    redactor = knowing(secret)
    assert MASK in redactor.text(f"it is ({form})"), form
    shown = f"it is ({form})".encode("utf-8", "surrogatepass")
    assert MASK.encode() in redactor.value(shown), form


@given(LIKELY_SECRET | ANY_SECRET, st.data())
def test_any_form_that_is_cut_into_deltas_is_found(secret, data):
    """No beginning of it is shown, and all deltas together are the text without the secret."""
    form = data.draw(st.sampled_from([*forms(secret)]))
    whole = f"it is ({form}) 63 34"
    redactor = knowing(secret)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    deltas, seen = redactor.deltas(), ""
    for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        for event in deltas(StreamEvent("text_delta", 0, whole[a:b])):
            seen += event.delta
        assert redactor.text(whole).startswith(seen)
    for event in deltas(StreamEvent("text_end", 0, whole)):
        seen += event.delta if event.type == "text_delta" else ""
    assert seen == redactor.text(whole)


@pytest.mark.parametrize("secret", ["x!" * 3_000, "a" * 6_000, "://a:" * 1_200, "\u00fc" * 6_000])
def test_text_that_almost_repeats_a_secret_ends_the_search(secret):
    """Where each place may begin a secret, the search stops after so many steps, and hides it."""
    almost = (secret[:-1] + "?") * 3
    shown = knowing(secret).text(almost)
    assert shown == almost or shown.endswith(MASK)
    assert MASK in knowing(secret).text(almost + secret)


def test_text_without_a_fragment_of_a_long_secret_has_it_encoded_nowhere(monkeypatch):
    """Only its beginning is, so that beginning and searching cost the same for any length."""
    sizes, encode = [], base64.b64encode
    monkeypatch.setattr(base64, "b64encode", lambda data: sizes.append(len(data)) or encode(data))
    redactor = knowing("Bearer eyJ" + "0aB-" * 20_000)
    harmless = "they said eyJ, 65 79 4a and more. " * 5_000
    assert redactor.text(harmless) is harmless
    assert redactor.value(harmless.encode()) == harmless.encode()
    assert redactor.split("it ends in ey") == ("it ends in ", "ey")
    assert 0 < max(sizes) < 100


@given(st.text(st.characters(codec="utf-8"), min_size=3, max_size=3))
@example("\u212aey")  # the sign of kelvin, of which the lower case is k
def test_heads_of_a_secret_are_the_beginnings_of_all_its_spellings(text):
    """They are computed at once, without the spellings, because every text is searched for them."""
    data = text.encode()[:3]
    heads, _ = secret_forms._heads(data, text)
    for number, kind in enumerate(secret_forms._KINDS):
        begins = re.match("[A-Za-z0-9]{0,3}", kind.letters(text, data)[-1])[0].lower()
        assert heads[number] == begins


def test_place_of_the_last_character_that_a_view_keeps():
    """In either case, and wherever other characters follow it."""
    for text, last in (("a A-", 2), ("A a-", 2), ("7b", 1), ("\u00e9 K\u212a", 2)):
        view = secret_forms._View(text, secret_forms.lowered)
        assert view.place(len(view.chars) - 1) == last


def test_bytes_that_are_no_text_are_found():
    """A binary key has no characters; what programs print of it is known all the same."""
    key = bytes(range(200, 232))
    redactor = knowing(key)
    for shown in (key.hex(), base64.b64encode(key).decode(), repr(key), key.decode("latin-1")):
        assert MASK in redactor.text(shown)
    assert redactor.value({"k": b"a" + key})["k"] == b"a" + MASK.encode()


def test_the_longer_of_two_overlapping_secrets_is_redacted_whole():
    """One that another begins with does not leave the rest of it behind."""
    redactor = knowing("sk-canary-1", "sk-canary-1-of-production")
    assert redactor.text("sk-canary-1-of-production, sk-canary-1") == f"{MASK}, {MASK}"


# --- values --------------------------------------------------------------------------------------

SAFE = st.text(st.characters(codec="utf-8", exclude_characters="☃"), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | SAFE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SAFE, inner, max_size=4),
    max_leaves=20,
)
# Nothing else begins with "☃". One backslash at the end and one that follows are an escaped one,
# which goes too.
ONE_SECRET = (
    st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=8)
    .filter(lambda text: not text.endswith("\\"))
    .map(lambda text: "☃" + text)
)


def hidden(value, secret, draw):
    """*value* with *secret* somewhere in each of its texts, and what is to become of it."""
    if isinstance(value, str):
        at = draw(st.integers(0, len(value)))
        return value[:at] + secret + value[at:], value[:at] + MASK + value[at:]
    if isinstance(value, list):
        pairs = [hidden(item, secret, draw) for item in value]
        return [a for a, _ in pairs], [b for _, b in pairs]
    if isinstance(value, Mapping):
        pairs = {key: hidden(item, secret, draw) for key, item in value.items()}
        return {k: a for k, (a, _) in pairs.items()}, {k: b for k, (_, b) in pairs.items()}
    return value, value


@given(JSON, ONE_SECRET, st.data())
def test_a_secret_at_any_place_is_redacted_and_the_rest_kept(value, secret, data):
    """In any text of any nesting: the mask stands in its place, the rest is what it was."""
    dirty, clean = hidden(value, secret, data.draw)
    assert knowing(secret).value(dirty) == clean


@given(JSON)
def test_a_value_without_a_secret_is_returned_as_the_same_object(value):
    """Not even copied: who has credentials and leaks nothing pays for the search alone."""
    assert knowing("☃canary☃").value(value) is value
    assert Redactor().value(value) is value


def test_keys_are_searched_and_stay_apart():
    """Two keys that held a secret do not become one."""
    found = knowing("canary-0123").value({"canary-0123": 1, "canary-0123 ": 2, MASK: 3})
    assert sorted(found.values()) == [1, 2, 3]
    assert "canary" not in str(found)


def test_an_object_that_shows_a_secret_is_replaced_whole():
    """What cannot be looked into is judged by its `repr`, also when that fails."""
    redactor = knowing("canary-0123")
    assert redactor.value([SimpleNamespace(a="canary-0123")]) == [MASK]
    assert redactor.value([Account(name="x", password=SecretStr("canary-0123"))])[0] != MASK
    assert redactor.value([Account(name="canary-0123", password=SecretStr("x"))]) == [MASK]
    assert redactor.value([Quiet("canary-0123")]) == [MASK]
    harmless = SimpleNamespace(a=1)
    assert redactor.value([harmless])[0] is harmless

    class Mute:
        def __repr__(self):
            raise RuntimeError("canary-0123")

    mute = Mute()
    assert redactor.value(mute) is mute


def test_the_search_ends_at_a_value_that_contains_itself():
    """A tool may report anything."""
    loop = ["canary-0123"]
    loop.append(loop)
    assert "canary" not in repr(knowing("canary-0123").value(loop))


def test_a_part_that_holds_a_secret_is_refused_by_name():
    """Where a changed value would be another value."""
    redactor = knowing("canary-0123")
    redactor.refuse(name="a", content=b"b", media_type=None)
    with pytest.raises(ValueRefused, match="/content") as refused:
        redactor.refuse(name="a", content=b"b canary-0123")
    assert refused.value.path == "/content"
    assert "canary" not in str(refused.value)


# --- messages ------------------------------------------------------------------------------------


def test_a_signature_goes_with_text_that_had_to_be_changed():
    """A provider refuses a signature over other text; one over the same text stays."""
    signed = ThinkingContent("the key is canary-0123", thinking_signature="sig")
    other = ThinkingContent("it is hidden", thinking_signature="sig")
    spoken = TextContent("canary-0123", text_signature="sig")
    call = ToolCall("c1", "f", {"k": ["canary-0123"]}, thought_signature="sig")
    message = AssistantMessage([signed, other, spoken, call])
    found = knowing("canary-0123").message(message)
    assert found.content == (
        ThinkingContent(f"the key is {MASK}"),
        other,
        TextContent(MASK),
        ToolCall("c1", "f", {"k": [MASK]}),
    )
    assert found.content[1] is other


def test_a_result_is_searched_in_content_details_and_images():
    """Text that was written into a picture is in its base64 too."""
    picture = ImageContent(base64.b64encode(b"PNG..canary-0123..").decode())
    result = ToolResultMessage(
        tool_call_id="c", tool_name="t", content=[picture], details={"a": "canary-0123"}
    )
    found = knowing("canary-0123").message(result)
    assert found.content == (TextContent(MASK),)
    assert found.details == {"a": MASK}


@pytest.mark.parametrize(
    "file",
    [
        ImageContent(url="https://files.test/cat.png?token=canary-0123"),
        DocumentContent("JVBERi0=", name="canary-0123.pdf"),
        DocumentContent(url="https://files.test/canary-0123.pdf"),
        DocumentContent(base64.b64encode(b"%PDF canary-0123").decode()),
        AudioContent("UklGRg==", mime_type="audio/canary-0123"),
    ],
)
def test_a_file_is_searched_in_all_its_fields(file):
    """Its data, its type, its name and its URL, which often bears a token."""
    result = ToolResultMessage(tool_call_id="c", tool_name="t", content=[file])
    assert knowing("canary-0123").message(result).content == (TextContent(MASK),)
    assert knowing("canary-0123").value({"file": file}) == {"file": TextContent(MASK)}
    assert knowing("another-0123").message(result) is result


def test_user_messages_are_not_redacted():
    """It is the user's, and stored before the turn begins."""
    message = UserMessage("my key is canary-0123")
    assert knowing("canary-0123").message(message) is message


def test_an_answer_that_was_cut_in_a_secret_does_not_keep_the_half():
    """The end of an aborted answer may be a secret that would have gone on."""
    redactor = knowing("canary-0123456789")
    for reason in (StopReason.ABORTED, StopReason.LENGTH, StopReason.ERROR):
        cut = AssistantMessage("it is canary-01234", stop_reason=reason)
        assert redactor.message(cut).text == f"it is {MASK}"
    whole = AssistantMessage("it is canary-01234")
    assert redactor.message(whole) is whole


class Growing:
    """A partial message."""

    def __init__(self, text):
        self.text = text

    def snapshot(self):
        return AssistantMessage(self.text)


@given(
    st.lists(st.sampled_from(["canary-0123", "canary", "-01", "c", "x ", "23"]), max_size=12),
    st.data(),
)
def test_deltas_together_are_the_text_without_secrets(words, data):
    """However a text is cut into deltas; and at no moment is a beginning of a secret shown."""
    redactor = knowing("canary-0123", "canary-0123-x", "y-canary-01234")
    whole = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    deltas, seen = redactor.deltas(), ""
    for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        partial = Growing(whole[:b])
        for event in deltas(StreamEvent("text_delta", 0, whole[a:b], partial)):
            seen += event.delta
            assert redactor.text(whole).startswith(event.partial.text)
            assert event.partial.snapshot().text == event.partial.text
        assert redactor.text(whole).startswith(seen)
    for event in deltas(StreamEvent("text_end", 0, whole, Growing(whole))):
        if event.type == "text_delta":
            seen += event.delta
        else:
            assert event.delta == redactor.text(whole)
    assert seen == redactor.text(whole)


@given(
    st.lists(
        st.tuples(st.sampled_from(["canary-0123", "canary", "-01", "c", "x ", "23"]), st.booleans())
    )
)
def test_delta_after_unseen_ones_shows_no_part_of_a_secret(pieces):
    """A secret that began before somebody looked is hidden; what nobody saw is not shown."""
    redactor = knowing("canary-0123", "canary-0123-x", "y-canary-01234")
    deltas, held = redactor.deltas(), ""
    for text, is_seen in pieces:
        event = StreamEvent("text_delta", 0, text, Growing(text))
        shown, held = redactor.split(held + text)
        if is_seen:
            assert "".join(one.delta for one in deltas(event)) == shown
        else:
            deltas.skip(event)
    (*last, _) = deltas(StreamEvent("text_end", 0, "", Growing("")))
    assert "".join(one.delta for one in last) == redactor.text(held)


def test_an_unseen_end_of_a_block_does_not_reach_the_next_block():
    """As a provider that begins again, with the same number of a block."""
    deltas = knowing("canary-0123").deltas()
    deltas.skip(StreamEvent("text_delta", 0, "it is canary", Growing("it is canary")))
    deltas.skip(StreamEvent("text_end", 0, "it is canary", Growing("it is canary")))
    (shown,) = deltas(StreamEvent("text_delta", 0, "-0123", Growing("-0123")))
    assert shown.delta == "-0123"


# --- errors --------------------------------------------------------------------------------------


def chained(error, cause):
    """*error*, raised because of *cause*, with the traceback of both."""
    try:
        try:
            raise cause
        except type(cause) as exc:
            raise error from exc
    except type(error) as exc:
        return exc


class Theirs(Exception):
    """An error of some client, with its request."""


@pytest.mark.parametrize(
    "error",
    [
        RateLimited("wait canary-0123", retry_after_s=3.0, provider="p"),
        RateLimited("wait", retry_after_s=3.0, headers={"k": ["canary-0123"]}),
        chained(RateLimited("wait", retry_after_s=3.0), ValueError("canary-0123")),
        chained(RateLimited("wait", retry_after_s=3.0), Theirs("it does not show")),
    ],
)
def test_a_looopy_error_keeps_its_class_and_facts(error):
    """What is chained to it, and where it came from, is cut off: it may hold the secret."""
    found = knowing("canary-0123").error(error)
    assert type(found) is RateLimited
    assert found.retry_after_s == 3.0
    assert found.message.startswith("wait")
    assert found.__cause__ is found.__context__ is found.__traceback__ is None
    again = pickle.loads(pickle.dumps(found))  # noqa: S301 - our own bytes
    for shown in (found, again):
        lines = traceback.format_exception(shown)
        assert "canary" not in f"{lines}{shown!r}{vars(shown)}{shown.args}{pickle.dumps(shown)}"


def test_an_error_of_others_becomes_one_that_says_as_much():
    """Its class cannot be made again by us; its name and its words can be told."""
    found = knowing("canary-0123").error(KeyError("canary-0123"))
    assert type(found) is LooopyError
    assert str(found) == f"KeyError: '{MASK}'"
    group = ExceptionGroup("several", [ValueError("canary-0123")])
    noted = ValueError("plain")
    noted.add_note("canary-0123")
    for error in (group, noted):
        shown = traceback.format_exception(knowing("canary-0123").error(error))
        assert "canary" not in "".join(shown)


def test_an_error_without_a_secret_is_kept_unchanged():
    """Its cause and its traceback help whoever has to mend it."""
    error = chained(ContextNotFound("no such context"), KeyError("ada"))
    assert knowing("canary-0123").error(error) is error
    dirty = KeyError("canary-0123")
    assert Redactor().error(dirty) is dirty


# --- life ----------------------------------------------------------------------------------------


def test_a_redactor_is_never_copied_or_shown():
    """It holds every secret of the turn in plain."""
    redactor = knowing("canary-0123")
    assert repr(redactor) == "<Redactor>"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leak(redactor)


def test_a_key_that_comes_later_is_a_secret_from_then_on():
    """The key of a call is known when the call is made."""
    redactor = Redactor()
    redactor.add(None)
    assert redactor.free
    redactor.add("canary-0123")
    redactor.add("canary-4567")
    assert redactor.text("canary-0123 canary-4567") == f"{MASK} {MASK}"


def test_our_log_shows_no_secret_of_a_turn_that_runs(caplog):
    """Message, arguments and traceback; when the turn is over, nothing is left of it."""
    redactor = knowing("canary-0123")
    logger = logging.getLogger("looopy")
    error = chained(KeyError("a"), ValueError("canary-0123"))
    logger.error("it failed with %s", "canary-0123", exc_info=error)
    assert "ValueError: [redacted]" in caplog.text
    assert "it failed with [redacted]" in caplog.text
    assert "canary" not in caplog.text
    logger.warning("100%% of %s", "it")
    assert "100% of it" in caplog.text
    del redactor
    gc.collect()
    logger.warning("canary-0123 is a word again")
    assert "canary-0123 is a word again" in caplog.text


@pytest.mark.parametrize("secret", ["abc/def+ghi=jkl", "p\u00e4ss w\u00f6rd/?&", "a%2Fb%3Fc%20d"])
@pytest.mark.parametrize("safe", ["/", ""])
@pytest.mark.parametrize("plus", [False, True])
def test_percent_encoding_is_found_in_capitals_and_in_small_letters(secret, safe, plus):
    """RFC 3986 takes both for the same, and programs write either."""
    written = quote_plus(secret, safe=safe) if plus else quote(secret, safe=safe)
    small = re.sub("%..", lambda found: found[0].lower(), written)
    for form in (written, small):
        shown = knowing(secret).text(f"GET /v1?key={form}&n=1")
        assert form not in shown
        assert MASK in shown


@pytest.mark.parametrize("name", ["api", "provider", "model", "response_id", "error_message"])
def test_a_secret_beside_the_content_of_an_answer_is_hidden(name):
    """A gateway may echo a key as the name of the model, or in the id of its answer."""
    key = "sk-4242-abcdefgh"
    redactor = Redactor(AuthContext("ada", credentials={"key": key}))
    names = {"api": "a", "provider": "p", "model": "m", name: f"x {key}"}
    message = AssistantMessage([TextContent("fine")], **names)
    assert getattr(redactor.message(message), name) == "x [redacted]"
    plain = AssistantMessage([TextContent("fine")], api="a", provider="p", model="m")
    assert redactor.message(plain) is plain
