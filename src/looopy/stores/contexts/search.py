"""
Searching messages: the query, the hits, and the walk over contexts, the same for every store.

An index only proposes messages. Each proposed message is read, and it is a hit if its own text has
the words. So an index that is older than the log, or knows a word too many, changes no answer.

Hits are ordered as in a listing: the last active context first, and in it the newest message.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from looopy.errors import ValueRefused
from looopy.stores.contexts.listing import another_query, mark_of, no_cursor
from looopy.stores.contexts.words import (
    LONGEST_TEXT,
    Span,
    Unit,
    all_in_a_row,
    in_a_row,
    index_spans,
    units,
)
from looopy.stores.records import MessageRecord
from looopy.types.message import AssistantMessage, CustomMessage, Message, ToolResultMessage
from looopy.types.storable import check_limit, check_name, check_text, dump

LONGEST_QUERY = 1_000
MOST_TERMS = 32
_MOST_UNITS = 256
AT_ONCE = 256
"""Contexts that are looked at together, at first."""
_MOST_AT_ONCE = 4_096
_AROUND = 60  # characters of a snippet before the first match
_LONGEST_SNIPPET = 200
_CUT = "…"
_CURSOR = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19})-([A-Za-z0-9._:-]{1,128}))?-([0-9a-f]{12})")
_TERM = re.compile(r'"([^"]*)"?|([^\s"]+)')
_WAY_OUT = 'give words, "a phrase" or a beginn*'


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """
    A message that a search found.

    Attributes:
        position: Its place in the context, `seq` in its log, and the turn that it belongs to.
        role: `user`, `assistant`, `toolResult`, or a role of the application's own.
        snippet: The text around the first match; `…` stands for text that is cut off.
        matches: Where the matches begin and end in the snippet, in characters and in order.
    """

    context_id: str
    position: int
    turn: int
    seq: int
    role: str
    snippet: str
    matches: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """
    A page of a search.

    Attributes:
        items: Contexts in the order of a listing; in each, the newest message first.
        next: Pass it as `after` for the next page; `None` if this is the last one.
    """

    items: Sequence[SearchHit]
    next: str | None = None


class Term(NamedTuple):
    """Units that follow each other; with *prefix*, the last one may be longer in the text."""

    wanted: tuple[Unit, ...]
    prefix: bool


def read_query(query: object) -> list[Term]:
    """The terms of a query, each once; `ValueRefused` if it is too long, or has no words."""
    if not isinstance(query, str):
        raise ValueRefused(f"a query is a text: {_WAY_OUT}", path="/query")
    if len(query) > LONGEST_QUERY:
        raise ValueRefused(
            f"a query has at most {LONGEST_QUERY} characters: search for fewer words", path="/query"
        )
    check_text(query, "/query")
    terms: dict[tuple[tuple[str, ...], bool], Term] = {}
    for phrase, word in _TERM.findall(query):
        said = phrase or word
        wanted = tuple(units(said))
        if wanted:
            prefix = said.startswith("*", wanted[-1].end)
            terms[tuple(unit.word for unit in wanted), prefix] = Term(wanted, prefix)
    found = list(terms.values())
    if not found:
        raise ValueRefused(f"the query has no words: {_WAY_OUT}", path="/query")
    if len(found) > MOST_TERMS or sum(len(term.wanted) for term in found) > _MOST_UNITS:
        raise ValueRefused(
            f"a query has at most {MOST_TERMS} words and phrases: search for fewer", path="/query"
        )
    return found


def searched_text(message: Message) -> str:
    """
    The searched text of a message: of the user, the model or a tool, with calls.

    Reasoning is left out, and so are images and the `details` of results.
    """
    text = message.text
    if isinstance(message, AssistantMessage):
        calls = (f"{call.name} {dump(call.arguments)}" for call in message.tool_calls)
        text = "\n".join((text, *calls)) if message.tool_calls else text
    elif isinstance(message, ToolResultMessage):
        text = f"{message.tool_name}\n{text}"
    elif isinstance(message, CustomMessage) and not isinstance(message.content, str):
        text = dump(message.content)
    return text[:LONGEST_TEXT]


class Wanted:
    """
    A search, checked.

    Attributes:
        context_id: `None`: all contexts that `owner` has, or all of the tenant.
        spans: A hit has a word of each of them in an index.
        before: Only positions below this one of the first context; `None` from its end.
        place: Where that context was in the listing, and its id, after the first page of a search
            over many.
    """

    def __init__(
        self,
        query: str,
        *,
        context_id: str | None,
        owner: str | None,
        after: str | None,
        limit: int,
    ) -> None:
        self.terms = read_query(query)
        if context_id is not None:
            check_name(context_id, "a context id", "/context_id")
        if owner is not None:
            check_name(owner, "an owner", "/owner")
        check_limit(limit, optional=False)
        self.context_id = context_id
        self.owner = owner
        self.limit = limit
        of_terms = [index_spans(term.wanted, prefix=term.prefix) for term in self.terms]
        self.spans: list[Span] = list(dict.fromkeys(span for spans in of_terms for span in spans))
        self._in_a_row = [
            in_a_row((unit.word for unit in term.wanted), prefix=term.prefix) for term in self.terms
        ]
        self.before: int | None = None
        self.place: tuple[int, str] | None = None
        if after is not None:
            self._begin_after(after)

    def _begin_after(self, after: object) -> None:
        found = _CURSOR.fullmatch(after) if isinstance(after, str) else None
        numbers = [] if found is None else [int(n) for n in found.groups()[:2] if n is not None]
        if found is None or max(numbers) >= 2**63:
            raise no_cursor()
        if found[4] != self._mark or (found[3] is None) is not (self.context_id is not None):
            raise another_query()
        self.before = numbers[0]
        if self.context_id is None:
            self.place = (numbers[1], found[3])

    @property
    def _mark(self) -> str:
        said = sorted(([unit.word for unit in one.wanted], one.prefix) for one in self.terms)
        return mark_of("search", said, self.context_id, self.owner)

    def page(self, found: Sequence[tuple[int, SearchHit]]) -> SearchPage:
        """The page of *found*: hits, each with the place of its context in the listing."""
        items = [hit for _, hit in found[: self.limit]]
        if len(found) <= self.limit or not items:
            return SearchPage(items=items)
        touched, last = found[self.limit - 1]
        place = "" if self.context_id is not None else f"-{touched}-{last.context_id}"
        return SearchPage(items=items, next=f"{last.position}{place}-{self._mark}")

    def hits(self, context_id: str, records: Iterable[MessageRecord]) -> Iterator[SearchHit]:
        """The hits among messages of a context."""
        for record in records:
            text = searched_text(record.message)
            matches = self._matches(text)
            if matches:
                snippet, shown = _snippet(text, matches)
                yield SearchHit(
                    context_id=context_id,
                    position=record.position,
                    turn=record.turn,
                    seq=record.seq,
                    role=record.message.role,
                    snippet=snippet,
                    matches=shown,
                )

    def _matches(self, text: str) -> list[tuple[int, int]]:
        """The places of all terms in *text*, in order; empty if one is missing."""
        all_of_it = all_in_a_row(text)
        if any(words not in all_of_it for words in self._in_a_row):
            return []
        there = list(units(text))
        at: dict[str, list[int]] = {}
        for place, unit in enumerate(there):
            at.setdefault(unit.word, []).append(place)
        found: list[tuple[int, int]] = []
        for term in self.terms:
            places = _places(term, there, at)
            if not places:
                return []
            last = len(term.wanted) - 1
            found += [(there[place].start, there[place + last].end) for place in places]
        return _joined(found)


def _places(term: Term, there: Sequence[Unit], at: dict[str, list[int]]) -> list[int]:
    """Where the units of *term* follow each other."""
    wanted, last = term.wanted, len(term.wanted) - 1
    if last == 0 and term.prefix:
        begun = wanted[0].word
        return [p for p, unit in enumerate(there) if unit.word.startswith(begun)]
    return [
        place
        for place in at.get(wanted[0].word, ())
        if place + last < len(there)
        and all(there[place + n].word == wanted[n].word for n in range(1, last))
        and _ends_with(term, there[place + last].word)
    ]


def _ends_with(term: Term, word: str) -> bool:
    wanted = term.wanted[-1].word
    return word.startswith(wanted) if term.prefix else word == wanted


def _joined(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """*found* in order; overlapping matches become one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _snippet(
    text: str, matches: Sequence[tuple[int, int]]
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The part of *text* around the first match, and the matches in that part."""
    first = matches[0][0]
    start = max(0, first - _AROUND)
    if start and (space := re.search(r"\s", text[start:first])) is not None:
        start += space.end()
    end = min(len(text), start + _LONGEST_SNIPPET)
    if end < len(text):
        spaces = [found.start() for found in re.finditer(r"\s", text[start:end])]
        if spaces and start + spaces[-1] >= matches[0][1]:
            end = start + spaces[-1]
    lead = _CUT if start else ""
    shift = len(lead) - start
    shown = tuple((low + shift, min(high, end) + shift) for low, high in matches if low < end)
    return f"{lead}{text[start:end]}{_CUT if end < len(text) else ''}", shown


class Place(NamedTuple):
    """A context in the order of a listing."""

    touched: int
    context_id: str


class Conditions(TypedDict, total=False):
    """The keywords of `ContextIndex.search`, for a store that passes them on."""

    context_id: str | None
    owner: str | None
    after: str | None
    limit: int


class Searcher(ABC):
    """The walk of a search over contexts; a store supplies the three steps below it."""

    async def search(
        self,
        query: str,
        *,
        context_id: str | None = None,
        owner: str | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> SearchPage:
        """See `ContextIndex.search`."""
        wanted = Wanted(query, context_id=context_id, owner=owner, after=after, limit=limit)
        found: list[tuple[int, SearchHit]] = []
        most = limit + 1  # one more shows that there is another page
        first = context_id if wanted.place is None else wanted.place[1]
        if first is not None and await self._is_of(first, owner):
            touched = 0 if wanted.place is None else wanted.place[0]
            hits = await self._below(first, wanted, wanted.before, most)
            found += [(touched, hit) for hit in hits]
        if context_id is not None:
            return wanted.page(found)
        place = None if wanted.place is None else Place(*wanted.place)
        at_once = AT_ONCE
        while len(found) < most:
            contexts = await self._contexts(owner, place, at_once)
            names = [one.context_id for one in contexts]
            likely = set(await self._likely(names, wanted))
            for touched, name in contexts:
                if len(found) < most and name in likely:
                    hits = await self._below(name, wanted, None, most - len(found))
                    found += [(touched, hit) for hit in hits]
            if len(contexts) < at_once:
                break
            place, at_once = contexts[-1], min(at_once * 4, _MOST_AT_ONCE)
        return wanted.page(found)

    @abstractmethod
    async def _is_of(self, context_id: str, owner: str | None) -> bool:
        """True if the context exists and has this owner, or *owner* is `None`."""

    @abstractmethod
    async def _contexts(self, owner: str | None, after: Place | None, most: int) -> list[Place]:
        """The next contexts of a listing."""

    @abstractmethod
    async def _likely(self, context_ids: Sequence[str], wanted: Wanted) -> Iterable[str]:
        """Those that may have hits."""

    @abstractmethod
    async def _below(
        self, context_id: str, wanted: Wanted, before: int | None, most: int
    ) -> list[SearchHit]:
        """The newest hits of a context, at most so many, with a position below *before*."""
