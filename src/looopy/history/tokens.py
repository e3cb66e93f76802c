"""
How many tokens a message takes: counted by the model's tokenizer, measured, or estimated.

The estimate knows scripts, not words: a quarter of a token for a letter or a space, more for a
digit and a mark, about one for a Chinese character, two for an emoji. It is deterministic, so all
processes cut a log at the same place. Two things correct it:

- A provider may count (`Abilities.count_tokens`). Then each message has the counted number of
  tokens, though at least half of the estimate, so a reader knows how far back the window may reach.
- Else the usage that the provider reports for a request is compared with the estimate for exactly
  that request. The ratio is the `Scale` of the context; see there for how it is kept still.
"""

from __future__ import annotations

import json
from typing import Final

from looopy.history.images import image_tokens
from looopy.types.message import (
    CustomMessage,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from looopy.types.request import ToolSpec

MESSAGE_TOKENS: Final = 4  # role and separators
_SHORT: Final = 64  # characters up to which a text of ASCII is not looked at
_SAMPLED: Final = 65_536  # characters above which only samples of a text are looked at
_SAMPLES: Final = 8
_DIGITS: Final = b"0123456789"
_MARKS: Final = bytes(c for c in range(33, 127) if not chr(c).isalnum())
# In hundredths of a token, between what two vocabularies need (see decision 37).
_LETTER: Final = 25
_DIGIT: Final = 30  # beyond a letter
_MARK: Final = 20  # likewise
_DENSE: Final = 70  # base64 and hex: digits among letters, and hardly a space or mark
_TWO_BYTES: Final = 50  # in UTF-8: accents, Greek, Cyrillic, Hebrew, Arabic
_THREE_BYTES: Final = 100  # Chinese, Japanese, Korean, Devanagari, Thai, typographic marks
_FOUR_BYTES: Final = 200  # emoji, rare characters


def text_tokens(text: str) -> int:
    """About how many tokens *text* takes."""
    size = len(text)
    if size <= _SHORT and text.isascii():
        return -(-size * _LETTER // 100)
    if size > _SAMPLED:
        step, part = size // _SAMPLES, _SAMPLED // _SAMPLES
        sample = "".join(text[i * step : i * step + part] for i in range(_SAMPLES))
        return -(-_hundredths(sample) * size // (100 * len(sample)))
    return -(-_hundredths(text) // 100)


def _hundredths(text: str) -> int:
    plain = text.encode("ascii", "ignore")
    size = len(plain)
    digits = size - len(plain.translate(None, _DIGITS))
    marks = size - len(plain.translate(None, _MARKS))
    if digits * 20 > size and (marks + plain.count(b" ") + plain.count(b"\n")) * 20 < size:
        found = size * _DENSE
    else:
        found = size * _LETTER + digits * _DIGIT + marks * _MARK
    others = len(text) - size
    if others:
        in_utf8 = len(text.encode("utf-8", "surrogatepass")) - size
        four = len(text.encode("utf-16-le", "surrogatepass")) // 2 - len(text)
        three = in_utf8 - 4 * four - 2 * (others - four)
        two = others - four - three
        found += two * _TWO_BYTES + three * _THREE_BYTES + four * _FOUR_BYTES
    return found


def estimate_tokens(message: Message) -> int:
    """About how many tokens a message takes; a custom one none."""
    if isinstance(message, CustomMessage):
        return 0
    content = message.content
    if isinstance(content, str):
        return MESSAGE_TOKENS + text_tokens(content)
    tokens = MESSAGE_TOKENS
    for block in content:
        if isinstance(block, TextContent):
            tokens += text_tokens(block.text)
        elif isinstance(block, ThinkingContent):
            tokens += text_tokens(block.thinking)
        elif isinstance(block, ToolCall):
            tokens += text_tokens(_call_text(block))
        else:
            tokens += image_tokens(block.data)
    return tokens


def _call_text(call: ToolCall) -> str:
    return call.name + json.dumps(call.arguments, default=str, ensure_ascii=False)


def spec_tokens(spec: ToolSpec) -> int:
    """About how many tokens the definition of a tool takes."""
    return MESSAGE_TOKENS + text_tokens(
        f"{spec.name}{spec.description}{json.dumps(spec.parameters, default=str)}"
    )
