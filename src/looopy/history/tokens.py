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

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from looopy.types.message import (
    AudioContent,
    CustomMessage,
    DocumentContent,
    ImageContent,
    Message,
    ServerToolCall,
    ServerToolResult,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from looopy.types.request import ToolSpec

MESSAGE_TOKENS: Final = 4  # role and separators
_SHORT: Final = 64  # characters up to which a text of ASCII is not looked at
_SAMPLED: Final = 65_536  # characters above which only samples of a text are looked at
_SAMPLES: Final = 8
LEAST_COUNTED: Final = 50
"""A message counts at least so many hundredths of its estimate, whatever the tokenizer counts."""
_PATIENCE_S: Final = 10.0  # with a tokenizer
_MANY: Final = 256
_LEAST_MEASURED: Final = 1_000  # tokens of a request whose usage is compared
_LEAST_RATIO: Final = 50
_MOST_RATIO: Final = 300
_MOST_SCHEMAS: Final = 1_024
# By the id of a schema, which is kept, so that no other one has its id.
_schemas: dict[int, tuple[Mapping[str, Any], int]] = {}
_DIGITS: Final = b"0123456789"
_MARKS: Final = bytes(c for c in range(33, 127) if not chr(c).isalnum())
# In hundredths of a token, between what cl100k_base and Qwen 2.5 need.
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
        elif isinstance(block, (ServerToolCall, ServerToolResult)):
            tokens += text_tokens(_item_text(block))
        else:
            tokens += _file_tokens(block)
    return tokens


def _file_tokens(block: ImageContent | DocumentContent | AudioContent) -> int:
    if isinstance(block, ImageContent):
        from looopy.history.images import image_tokens  # few conversations have images

        return image_tokens(block.data)
    from looopy.history.files import file_tokens  # few histories have one

    return file_tokens(block, text_tokens)


def _call_text(call: ToolCall) -> str:
    return call.name + json.dumps(call.arguments, default=str, ensure_ascii=False)


def _item_text(block: ServerToolCall | ServerToolResult) -> str:
    return json.dumps(block.item, default=str, ensure_ascii=False)


class Counts:
    """
    Messages with the tokens that the model's own tokenizer counts.

    Contract: `weigh` knows a message from its first `add` on, and estimates any other. After a
    failure it estimates all, and `failed` is set: counting again would cut the log elsewhere.
    """

    def __init__(self) -> None:
        self.failed = False
        self._known: dict[int, tuple[Message, int]] = {}  # by id, which the message keeps its own

    def weigh(self, message: Message) -> int:
        """The tokens of *message*, in any case half of the estimate."""
        found = self._known.get(id(message))
        return estimate_tokens(message) if found is None else found[1]

    async def add(
        self, messages: Sequence[Message], count: Callable[[Sequence[str]], Awaitable[Any]]
    ) -> None:
        """
        Count *messages*.

        Raises:
            TimeoutError: The counter took too long.
            Exception: Whatever it raised, or it did not count.
        """
        new = [m for m in messages if id(m) not in self._known and not isinstance(m, CustomMessage)]
        if not new:
            return
        parts = [_parts_of(message) for message in new]
        async with asyncio.timeout(_PATIENCE_S):
            counted = list(await count([text for text, _ in parts]))
        if len(counted) != len(new) or not all(type(n) is int and n >= 0 for n in counted):
            raise TypeError("count_tokens returns a whole number from 0 for each text")
        for message, (_, files), tokens in zip(new, parts, counted, strict=True):
            least = -(-estimate_tokens(message) * LEAST_COUNTED // 100)
            self._known[id(message)] = message, max(least, MESSAGE_TOKENS + tokens + files)

    def keep(self, messages: Sequence[Message]) -> None:
        """Forget all but *messages*, now and then."""
        if len(self._known) > 2 * len(messages) + _MANY:
            here = {id(message) for message in messages}
            self._known = {key: one for key, one in self._known.items() if key in here}


def _parts_of(message: Message) -> tuple[str, int]:
    """The text of a message, and the tokens of its images and other files."""
    if isinstance(message.content, str):
        return message.content, 0
    texts, files = [], 0
    for block in message.content:
        if isinstance(block, TextContent):
            texts.append(block.text)
        elif isinstance(block, ThinkingContent):
            texts.append(block.thinking)
        elif isinstance(block, ToolCall):
            texts.append(_call_text(block))
        elif isinstance(block, (ServerToolCall, ServerToolResult)):
            texts.append(_item_text(block))
        else:
            files += _file_tokens(block)
    return "\n".join(texts), files


def spec_tokens(spec: ToolSpec) -> int:
    """About how many tokens the definition of a tool takes; counted once for each schema."""
    schema = spec.parameters
    known = _schemas.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_schemas) >= _MOST_SCHEMAS:
            _schemas.clear()
        tokens = text_tokens(json.dumps(schema, default=str, ensure_ascii=False))
        known = _schemas[id(schema)] = schema, tokens
    return MESSAGE_TOKENS + text_tokens(spec.name) + text_tokens(spec.description) + known[1]


class Scale:
    """
    How many tokens the model of a context needs for a hundred estimated ones.

    Contract: `used` changes only by `adopt`, so the same log is cut at the same place from call to
    call, however the measurements vary. The view adopts a measurement where the window begins again
    anyway, or where all of the log fits, or where the messages shown no longer fit.

    Attributes:
        used: The ratio by which limits are divided.
        wanted: The newest measurement that was more than a tenth away from the one before.
    """

    __slots__ = ("used", "wanted")

    def __init__(self, used: int = 100, wanted: int = 100) -> None:
        self.used, self.wanted = used, wanted

    @classmethod
    def read(cls, text: str) -> Scale:
        """The scale that `str` wrote; the neutral one if *text* is another text."""
        numbers = text.split()
        if len(numbers) == 2 and all(n.isdecimal() and len(n) == len("100") for n in numbers):
            return cls(*map(_plausible, map(int, numbers)))
        return cls()

    def __str__(self) -> str:
        """The scale as it is stored; "" for the neutral one."""
        neutral = self.used == self.wanted == 100
        return "" if neutral else f"{self.used:03} {self.wanted:03}"

    def measure(self, estimated: int, reported: int) -> None:
        """
        Compare an estimate with the tokens that the provider reports for the same request.

        A ratio that no vocabulary explains is passed over: the provider counts something else. So
        is a short request, because its frame weighs more than its text.
        """
        if estimated < _LEAST_MEASURED:
            return
        found = 100 * reported // estimated
        if found == _plausible(found) and abs(found - self.wanted) * 10 > self.wanted:
            self.wanted = found

    def adopt(self) -> None:
        """Use the newest measurement from now on."""
        self.used = self.wanted


def _plausible(ratio: int) -> int:
    return min(max(ratio, _LEAST_RATIO), _MOST_RATIO)
