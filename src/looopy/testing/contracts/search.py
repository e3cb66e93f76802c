"""The contract of `ContextIndex.search`; see `looopy.testing.stores`."""

from __future__ import annotations

from typing import Any

from looopy.errors import ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.contexts.search import SearchHit
from looopy.stores.records import NewSummary
from looopy.testing.contracts.turns import (
    CONTEXT,
    Contract,
    answer,
    at_once,
    begin,
    commit,
    ends,
    finishes,
    record_of,
    refuses,
    said,
    starts,
    user,
)
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    UserMessage,
)
from looopy.types.summary import summary_message

_SAID = (
    "The quick brown Fox",  # 1
    "jumps over the lazy dog",
    "Ünïcode FOX-trot, foxes; e\u0301te\u0301",  # 3, with accents on their own
    "東京都に行く 猫",
    "a.b@example.org wrote \\ ' \" % _ : * & | ! ( ) <-> :A",  # 5
    "dog dog DOG",
    "the dog ate the fox",  # 7
    "हिन्दी में लिखो 한국어 \uff21\uff22\uff23 straße",  # with letters of full width
    "user_id=4711 über-all 3.14",  # 9
)
_FOUND = {
    "fox": [7, 3, 1],
    "  FOX\n": [7, 3, 1],
    "fox dog": [7],
    "dog fox fox": [7],
    "fox*": [7, 3, 1],
    "foxe*": [3],
    "f*": [7, 3, 1],
    "fo": [],
    '"the fox"': [7],
    '"the dog" fox': [7],
    '"fox the"': [],
    '"brown fo*"': [1],
    '"brown fo"': [],
    '"lazy dog': [2],
    "fox-trot": [3],
    "trot-fox": [],
    "unicode": [3],
    "UNICODE ÉTÉ": [3],
    "e\u0301t\u00e9": [3],
    "東京": [4],
    "京都に": [4],
    "京": [4],
    "く": [4],
    "猫": [4],
    "都京": [],
    '"行く 猫"': [4],
    "हिन्दी": [8],
    "हिन": [],
    "한국*": [8],
    "abc STRASSE": [8],
    "\uff33\uff34RASSE": [8],
    "a.b@example.org": [5],
    "example.org b": [5],
    "user_id": [9],
    "4711 3.14": [9],
    "uber all": [9],
    "fox & dog": [7],
    "fox | lazy": [],
    "-fox": [7, 3, 1],
    "fox OR dog": [],
    "fox NEAR dog": [],
    "fo'x": [],
    "fox:*": [7, 3, 1],
    "the": [7, 2, 1],
}
_NO_QUERY: tuple[Any, ...] = (
    *("", " \n\t", '"', '""', "*", "* - + ( ) | & ! : ' \\", '"* - *"', "\u0301", "_", "%"),
    *("x" * 10_000, "nul \0", "lone \ud800", 7, None, ["fox"]),
    " ".join(f"w{n}" for n in range(33)),
)
_BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"context_id": 7}, "/context_id"),
    ({"owner": 7}, "/owner"),
    ({"owner": "nul \0"}, "/owner"),
    ({"limit": -1}, "/limit"),
    ({"limit": True}, "/limit"),
    ({"after": ""}, "/after"),
    ({"after": "x"}, "/after"),
    ({"after": "1"}, "/after"),  # of a search in one context
    ({"after": "9" * 19 + "-1-ada"}, "/after"),
    ({"after": "1-1-" + "a" * 129}, "/after"),
    ({"after": "1-1-ada", "context_id": "ada"}, "/after"),
    ({"after": 1, "context_id": "ada"}, "/after"),
)


async def _says(stores: Stores, name: str, *texts: str) -> None:
    await stores.messages.append(name, [user(text) for text in texts])


async def _hits(stores: Stores, query: str, **others: Any) -> list[SearchHit]:
    page = await stores.contexts.search(query, **{"limit": 1000, **others})
    assert page.next is None
    return list(page.items)


async def _places(stores: Stores, query: str, **others: Any) -> list[tuple[str, int]]:
    return [(hit.context_id, hit.position) for hit in await _hits(stores, query, **others)]


async def _positions(stores: Stores, query: str, name: str = CONTEXT) -> list[int]:
    hits = await _hits(stores, query, context_id=name)
    assert {hit.context_id for hit in hits} <= {name}
    return [hit.position for hit in hits]


async def _owned(stores: Stores, name: str, owner: str | None, text: str) -> None:
    claimed = await begin(stores, context_id=name, actor_id=owner, text=text)
    await commit(stores, claimed, [ends(context_id=name)], context_id=name, release=True)


class SearchContract(Contract):
    """A search finds each message that is listed and has the words; newest first, and no other."""

    async def test_words_phrases_and_beginnings(self, stores: Stores) -> None:
        """Without case, accents or forms of letters; scripts without spaces by their characters."""
        await _says(stores, CONTEXT, *_SAID)
        found = {query: await _positions(stores, query) for query in _FOUND}
        assert found == _FOUND
        for query, positions in _FOUND.items():
            assert await _places(stores, query) == [(CONTEXT, place) for place in positions]

    async def test_a_hit_shows_where_it_is_and_what_matches(self, stores: Stores) -> None:
        """The parts of the snippet that it names are the words as they were written."""
        claimed = await begin(stores, text="Was war der ZÜRICH-Preis?")
        call = ToolCall("c1", "look_up", {"place": "Zürich", "n": 3})
        await commit(stores, claimed, [said(answer("I look.", call)), starts(call)])
        await commit(stores, claimed, finishes(call, "Zurich: 3,\nzürich: 4"))
        hits = await _hits(stores, "zurich")
        assert [(h.position, h.turn, h.role) for h in hits] == [
            (3, 1, "toolResult"),
            (2, 1, "assistant"),
            (1, 1, "user"),
        ]
        for hit in hits:
            (record,) = [
                r for r in await stores.messages.records(CONTEXT) if r.position == hit.position
            ]
            assert (hit.seq, hit.turn) == (record.seq, record.turn)
        assert [[hit.snippet[a:b] for a, b in hit.matches] for hit in hits] == [
            ["Zurich", "zürich"],
            ["Zürich"],
            ["ZÜRICH"],
        ]
        assert hits[2].snippet == "Was war der ZÜRICH-Preis?"
        (hit,) = await _hits(stores, '"zurich preis" war')
        assert [hit.snippet[a:b] for a, b in hit.matches] == ["war", "ZÜRICH-Preis"]

    async def test_a_snippet_is_short(self, stores: Stores) -> None:
        """A part around the first match, which is cut between words where there are any."""
        filler = "lorem ipsum " * 50
        long = f"{filler}needle {filler}needle"
        await _says(stores, CONTEXT, long, "x" * 5000, f"needle{filler}")
        (hit,) = await _hits(stores, "needle")
        assert hit.snippet[0] + hit.snippet[-1] == "……"
        assert "ipsum needle lorem" in hit.snippet
        assert len(hit.snippet) <= 202
        assert [hit.snippet[a:b] for a, b in hit.matches] == ["needle"]
        assert set(hit.snippet[1:-1].split()) == {"lorem", "ipsum", "needle"}
        (hit,) = await _hits(stores, "x" * 900 + "*")
        assert (hit.matches, hit.snippet) == (((0, 200),), "x" * 200 + "…")
        (hit,) = await _hits(stores, "needlelorem")
        assert hit.snippet.startswith("needlelorem ipsum")

    async def test_texts_are_searched_but_no_reasoning_or_data(self, stores: Stores) -> None:
        """Texts, calls, results and the application's own content; no reasoning and no data."""
        call = ToolCall("c", "tool", {"k": "v1"})
        said: list[Message] = [
            AssistantMessage([ThinkingContent("reason"), TextContent("spoken"), call], timestamp=1),
            UserMessage([TextContent("shown"), ImageContent("aW1hZ2U=")], timestamp=1),
            CustomMessage("note", "plain", {"hidden": "meta"}, timestamp=1),
            CustomMessage("note", {"deep": ["inside", 7]}, timestamp=1),
            UserMessage("", timestamp=1),
        ]
        await stores.messages.append(CONTEXT, said)
        expected = {
            "spoken": [1],
            "tool": [1],
            "k": [1],
            "v1": [1],
            "shown": [2],
            "plain": [3],
            "deep": [4],
            "inside": [4],
            "7": [4],
            "reason": [],
            "aW1hZ2U": [],
            "meta": [],
            "hidden": [],
            "note": [],
        }
        assert {word: await _positions(stores, word) for word in expected} == expected
        assert await _positions(stores, "tool spoken") == [1]

    async def test_long_messages_and_long_words(self, stores: Stores) -> None:
        """The beginning of a long message is searched; a long word is one word to its end."""
        long = "y" * 700
        await _says(
            stores,
            CONTEXT,
            f"first {'word ' * 30_000} last",
            f"{long}1 {long}2",
            " ".join(f"n{n}" for n in range(20_000)),
        )
        assert await _positions(stores, "first word") == [1]
        assert await _positions(stores, "last") == []
        assert await _positions(stores, f"{long}2") == [2]
        assert await _positions(stores, long) == []
        assert await _positions(stores, f"{long}*") == [2]
        assert await _positions(stores, "n77 n14000") == [3]

    async def test_the_order_is_that_of_a_listing(self, stores: Stores) -> None:
        """The last active context first, and in it the newest message."""
        for name in ("a", "b", "c"):
            await _says(stores, name, "fox one", "no", "fox two")
        whole = [(name, place) for name in ("c", "b", "a") for place in (3, 1)]
        assert await _places(stores, "fox") == whole
        await _says(stores, "a", "a fox")
        assert await _places(stores, "fox") == [("a", 4), ("a", 3), ("a", 1), *whole[:4]]
        assert await _places(stores, "fox", context_id="b") == [("b", 3), ("b", 1)]
        assert await _places(stores, "fox", context_id="nobody") == []
        assert await _places(stores, "fox", context_id="no such id") == []

    async def test_pages_leave_nothing_out_and_repeat_nothing(self, stores: Stores) -> None:
        """The pages together are the whole, whatever their size."""
        for n, name in enumerate(("a", "b", "c", "d")):
            await _says(stores, name, *("a fox" if k % 2 else "the fox" for k in range(2 * n + 1)))
        for others in ({}, {"context_id": "d"}, {"context_id": "a"}):
            for query in ("fox", "the", "the fox"):
                whole = await _hits(stores, query, **others)
                for limit in (1, 2, 3, len(whole), 40):
                    found: list[SearchHit] = []
                    after: str | None = None
                    while True:
                        page = await stores.contexts.search(
                            query, limit=limit, after=after, **others
                        )
                        assert len(page.items) <= limit
                        found += page.items
                        if (after := page.next) is None:
                            break
                    assert found == whole
        assert (await stores.contexts.search("fox", limit=0)).items == []

    async def test_a_context_that_becomes_active_moves_out_of_the_next_pages(
        self, stores: Stores
    ) -> None:
        """Between two pages; the page continues where it ended, and every other one is there."""
        for name in ("a", "b", "c", "d"):
            await _says(stores, name, "fox one", "fox two")
        first = await stores.contexts.search("fox", limit=3)
        assert [(h.context_id, h.position) for h in first.items] == [("d", 2), ("d", 1), ("c", 2)]
        for name in ("b", "d", "c"):
            await _says(stores, name, "fox three")
        assert await _places(stores, "fox", after=first.next) == [("c", 1), ("a", 2), ("a", 1)]
        await stores.state.delete("c")
        assert await _places(stores, "fox", after=first.next) == [("a", 2), ("a", 1)]

    async def test_by_owner(self, stores: Stores) -> None:
        """Only in contexts of this owner, also with the `next` of another owner's page."""
        for name, owner in (("a", "ann"), ("b", "bob"), ("c", None), ("d", "ann")):
            await _owned(stores, name, owner, f"fox of {name}")
        assert await _places(stores, "fox", owner="ann") == [("d", 1), ("a", 1)]
        assert await _places(stores, "fox", owner="bob") == [("b", 1)]
        assert await _places(stores, "fox", owner="nobody") == []
        assert await _places(stores, "fox", owner="bob", context_id="b") == [("b", 1)]
        assert await _places(stores, "fox", owner="bob", context_id="a") == []
        page = await stores.contexts.search("fox", owner="ann", limit=1)
        assert page.next is not None
        theirs = page.next.replace("1-", "9-", 1)  # before the hit itself
        assert await _places(stores, "fox", owner="ann", after=theirs) == [("d", 1), ("a", 1)]
        with refuses(ValueRefused, path="/after"):
            await stores.contexts.search("fox", owner="bob", after=theirs)
        await _owned(stores, "e", "bob", "fox of e")
        his = (await stores.contexts.search("fox", owner="bob", limit=1)).next
        assert his is not None
        forged = f"{theirs.rpartition('-')[0]}-{his.rpartition('-')[2]}"  # their place, his mark
        assert await _places(stores, "fox", owner="bob", after=forged) == [("b", 1)]

    async def test_a_tenant_finds_its_own(self, stores: Stores) -> None:
        """Contexts of one name never meet, and another's `next` shows nothing."""
        other = stores.for_tenant("other")
        await _says(stores, CONTEXT, "my fox")
        await _says(other, CONTEXT, "their fox", "their dog")
        assert [h.snippet for h in await _hits(stores, "fox")] == ["my fox"]
        assert [h.snippet for h in await _hits(other, "fox")] == ["their fox"]
        assert await _places(stores, "dog") == []
        assert await _places(stores, "dog", context_id=CONTEXT) == []
        await _says(other, "more", "fox", "fox")
        page = await other.contexts.search("fox", limit=1)
        assert await _places(stores, "fox", after=page.next) == [(CONTEXT, 1)]
        assert await _places(stores.for_tenant("third"), "fox") == []

    async def test_each_search_knows_every_commit_before_it(self, stores: Stores) -> None:
        """Messages of a turn that runs, of one that is over, and of an append are found."""
        claimed = await begin(stores, text="fox one")
        assert await _positions(stores, "fox") == [1]
        await commit(stores, claimed, [said(answer("fox two"))])
        assert await _places(stores, "fox") == [(CONTEXT, 2), (CONTEXT, 1)]
        await commit(stores, claimed, [ends()], release=True)
        await _says(stores, CONTEXT, *(f"fox {n}" for n in range(3, 700)))
        assert await _positions(stores, "fox") == [*range(699, 0, -1)]
        await _says(stores, CONTEXT, "a dog")
        assert await _positions(stores, "dog") == [700]
        assert await _positions(stores, "fox one") == [1]
        assert len(await _places(stores, "fox*")) == 699

    async def test_messages_covered_by_a_summary_are_found(self, stores: Stores) -> None:
        """As it is listed; and so is the summary."""
        await _says(stores, CONTEXT, "the secret word is plover", "fine")
        assert await _positions(stores, "plover") == [1]
        epoch = (await record_of(stores)).epoch
        summary = summary_message("a word was told", kept=0)
        await stores.journal.compact(CONTEXT, NewSummary(message=summary, epoch=epoch))
        assert await _positions(stores, "plover") == [1]
        assert await _positions(stores, "told") == [3]

    async def test_cleared_or_deleted_messages_are_not_found(self, stores: Stores) -> None:
        """Searched before or not: a later message is found."""
        for searched in (True, False):
            await _says(stores, "a", "fox", "dog")
            await _says(stores, "b", "fox")
            if searched:
                assert len(await _places(stores, "fox")) == 2
            await stores.journal.clear("a")
            await stores.state.delete("b")
            assert await _places(stores, "fox") == await _places(stores, "dog") == []
            assert await _positions(stores, "fox", "a") == []
            await _says(stores, "a", "new fox")
            await _says(stores, "b", "other fox")
            hits = await _hits(stores, "fox")
            assert [hit.snippet for hit in hits] == ["other fox", "new fox"]
            last = (await record_of(stores, "a")).last_position
            assert [hit.position for hit in hits] == [1, last]
            await stores.state.delete("a")
            await stores.state.delete("b")

    async def test_searches_at_the_same_time_agree(self, stores: Stores) -> None:
        """While messages are added: each finds those before it, and the last finds all, once."""
        for name in ("a", "b", "c"):
            await _says(stores, name, *(f"fox {n}" for n in range(300)))
        calls = [_places(stores, "fox", context_id=name) for name in ("a", "b", "a", "c", "a", "b")]
        for found in await at_once(*calls):
            assert [place for _, place in found] == [*range(300, 0, -1)]
        await _says(stores, "b", "fox", "dog")

        async def more() -> list[tuple[str, int]]:
            for n in range(5):
                await _says(stores, "a", f"fox again {n}")
            return []

        await at_once(more(), _places(stores, "fox"), _places(stores, "dog"), more())
        expected = [("a", n) for n in range(310, 0, -1)]
        expected += [("b", n) for n in range(301, 0, -1)]
        assert await _places(stores, "fox", owner=None) == [
            *expected,
            *(("c", n) for n in range(300, 0, -1)),
        ]

    async def test_a_query_without_words_is_refused(self, stores: Stores) -> None:
        """Operators alone, nothing, and too much; the error names the query."""
        await _says(stores, CONTEXT, *_SAID)
        for query in _NO_QUERY:
            with refuses(ValueRefused, path="/query"):
                await stores.contexts.search(query)
            with refuses(ValueRefused, path="/query"):
                await stores.contexts.search(query, context_id=CONTEXT)
        for others, path in _BAD:
            with refuses(ValueRefused, path=path):
                await stores.contexts.search("fox", **others)
        await _says(stores, CONTEXT, "one owl", "another owl")
        here: dict[str, Any] = {"context_id": CONTEXT}
        every: tuple[dict[str, Any], ...] = ({}, here, {"owner": "ann"}, {**here, "owner": "ann"})
        for conditions in every[:2]:
            after = (await stores.contexts.search("owl", limit=1, **conditions)).next
            for others in every:
                if others is not conditions:
                    with refuses(ValueRefused, path="/after"):
                        await stores.contexts.search("owl", after=after, **others)
            with refuses(ValueRefused, path="/after"):
                await stores.contexts.search("one owl", after=after, **conditions)
            with refuses(ValueRefused, path="/after"):
                await stores.contexts.list(after=after)
