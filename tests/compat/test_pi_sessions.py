"""Sessions that pi has written."""

import json

import pytest

from looopy import Agent, open_stores
from looopy.compat import pi
from looopy.errors import ValueRefused
from looopy.testing import ScriptedProvider, text

HEAD = {
    "type": "session",
    "version": 3,
    "id": "s",
    "timestamp": "2026-01-01T00:00:00Z",
    "cwd": "/x",
}
ANSWER = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
        {"type": "toolCall", "id": "c", "name": "t", "arguments": {"keepMe": {"asIs": 1}}},
    ],
    "api": "anthropic-messages",
    "provider": "anthropic",
    "model": "m",
    "usage": {
        "input": 1,
        "output": 2,
        "cacheRead": 3,
        "cacheWrite": 4,
        "totalTokens": 10,
        "cost": {"input": 0.1, "output": 0, "cacheRead": 0.2, "cacheWrite": 0, "total": 0.3},
    },
    "stopReason": "toolUse",
    "timestamp": 2,
}
RESULT = {
    "role": "toolResult",
    "toolCallId": "c",
    "toolName": "t",
    "content": [{"type": "image", "data": "aGk=", "mimeType": "image/webp"}],
    "details": {"someKey": 1},
    "isError": True,
    "timestamp": 3,
}


def _user(words):
    return {"role": "user", "content": words, "timestamp": 1}


def _file(*entries, head=HEAD):
    """Lines of a session; each entry follows the one before unless it says otherwise."""
    lines, parent = [json.dumps(head)], None
    for number, (kind, fields) in enumerate(entries, 1):
        entry = {
            "type": kind,
            "id": f"e{number}",
            "parentId": parent,
            "timestamp": HEAD["timestamp"],
        }
        entry |= fields
        parent = entry["id"]
        lines.append(json.dumps(entry))
    return lines


def _message(message, **fields):
    return "message", {"message": message, **fields}


def test_messages_of_pi_are_ours_field_for_field():
    """Camel case becomes ours, but not in arguments and details; pipy's keys are read as well."""
    session = pi.read_session(_file(_message(_user("hi")), _message(ANSWER), _message(RESULT)))
    user, answer, result = session.messages
    assert (user.text, user.timestamp) == ("hi", 1)
    assert answer.content[0] == pi.ThinkingContent("hm", thinking_signature="sig")
    assert answer.tool_calls[0].arguments == {"keepMe": {"asIs": 1}}
    assert (answer.api, answer.provider, answer.model) == ("anthropic-messages", "anthropic", "m")
    assert (answer.usage.cache_read, answer.usage.total_tokens) == (3, 10)
    assert answer.usage.cost == pi.Cost(input=0.1, cache_read=0.2, total=0.3)
    assert answer.stop_reason is pi.StopReason.TOOL_USE
    assert (result.tool_call_id, result.tool_name, result.is_error) == ("c", "t", True)
    assert result.content == (pi.ImageContent("aGk=", mime_type="image/webp"),)
    assert result.details == {"someKey": 1}
    snake = {"role": "toolResult", "tool_call_id": "c", "tool_name": "t", "is_error": True}
    assert pi.read_session(_file(_message(snake))).messages[0].is_error


def test_only_the_active_branch_is_the_conversation():
    """It ends in the last entry; another leaf may be taken."""
    lines = _file(
        _message(_user("a")),
        _message(_user("left")),
        _message(_user("b"), parentId="e1"),
        _message(_user("c")),
    )
    session = pi.read_session(lines)
    assert [m.text for m in session.messages] == ["a", "b", "c"]
    assert session.leaf_id == "e4"
    other = pi.read_session(lines, leaf_id="e2")
    assert [m.text for m in other.messages] == ["a", "left"]
    with pytest.raises(ValueRefused, match="'e9'"):
        pi.read_session(lines, leaf_id="e9")


def test_entries_of_every_type_are_read_and_written_again():
    """Model, thinking level, labels, name; what nobody knows is reported and kept."""
    lines = _file(
        _message(ANSWER),
        ("model_change", {"provider": "openai", "modelId": "gpt"}),
        ("thinking_level_change", {"thinkingLevel": "high"}),
        ("custom", {"customType": "mine", "data": {"x": 1}}),
        ("label", {"targetId": "e1", "label": "here"}),
        ("label", {"targetId": "e2", "label": "gone"}),
        ("label", {"targetId": "e2"}),
        ("session_info", {"name": "My session"}),
        ("from_the_future", {"what": ["ever"]}),
        _message({"role": "bashExecution", "command": "ls", "exitCode": 0, "timestamp": 9}),
    )
    session = pi.read_session(lines)
    assert (session.model, session.thinking_level) == (("openai", "gpt"), "high")
    assert (session.name, session.labels) == ("My session", {"e1": "here"})
    assert [e.type for e in session.unknown] == ["from_the_future"]
    assert session.messages[-1] == pi.CustomMessage(
        "bashExecution", "", {"command": "ls", "exitCode": 0}, timestamp=9
    )
    assert [json.loads(line) for line in session.lines()] == [json.loads(line) for line in lines]
    assert pi.read_session(_file(_message(ANSWER))).model == ("anthropic", "m")


async def test_text_that_no_store_takes_is_repaired_in_messages_and_kept_in_lines():
    """As a program printed UTF-16, or an emoji was cut in two: each kind of entry has a message."""
    odd, repaired = "w\0\ud83d", "w\ufffd\ufffd"
    lines = _file(
        _message(_user(odd)),
        _message(ANSWER),
        _message(RESULT | {"content": [{"type": "text", "text": odd}], "details": {odd: odd}}),
        ("custom_message", {"customType": "x", "content": odd, "display": True}),
        ("branch_summary", {"fromId": "e1", "summary": odd}),
    )
    session = pi.read_session(lines)
    assert [message.text for message in session.messages] == [repaired, "", *[repaired] * 3]
    async with open_stores("memory:") as stores:
        await stores.messages.append("ada", session.messages)
        assert await stores.messages.count("ada") == len(lines) - 1
    assert [entry.raw for entry in session.entries] == [json.loads(line) for line in lines[1:]]


def test_a_compacted_session_has_all_and_shows_what_is_left():
    """Nothing that was summed up is lost; pi's model sees the summary first."""
    session = pi.read_session(
        _file(
            _message(_user("old")),
            _message(_user("kept")),
            ("compaction", {"summary": "S", "firstKeptEntryId": "e2", "tokensBefore": 9}),
            ("branch_summary", {"summary": "B", "fromId": "e1"}),
            ("custom_message", {"customType": "x", "content": "note", "display": True}),
            _message(_user("new")),
        )
    )
    roles = [m.role for m in session.messages]
    assert roles == ["user", "user", "compaction", "branch_summary", "custom_message", "user"]
    assert session.messages[2].metadata == {"firstKeptEntryId": "e2", "tokensBefore": 9}
    shown = session.shown
    assert {m.role for m in shown} == {"user"}
    assert shown[0].text.endswith("S")
    assert [m.text for m in shown][1::2] == ["kept", "note"]
    assert [m.text for m in shown][-1] == "new"


def test_older_versions_are_read():
    """Version 1 is a list without ids, in version 2 hooks had a role of their own."""
    old = [
        json.dumps({"type": "session", "id": "s", "timestamp": "t", "cwd": ""}),
        json.dumps({"type": "message", "message": _user("a")}),
        json.dumps({"type": "message", "message": _user("b")}),
        json.dumps({"type": "compaction", "summary": "S", "firstKeptEntryIndex": 2}),
        json.dumps({"type": "message", "message": _user("c")}),
    ]
    session = pi.read_session(old)
    assert [m.role for m in session.messages] == ["user", "user", "compaction", "user"]
    assert [m.text for m in session.shown][1:] == ["b", "c"]
    hook = {"role": "hookMessage", "content": "x", "customType": "h", "timestamp": 1}
    (message,) = pi.read_session(_file(_message(hook), head={**HEAD, "version": 2})).messages
    assert (message.role, message.metadata) == ("custom", {"customType": "h"})
    again = pi.read_session(session.lines())
    assert (again.header["version"], again.shown) == (3, session.shown)


GOOD = json.dumps({"type": "message", "id": "a", "parentId": None, "message": _user("x")})


@pytest.mark.parametrize(
    ("line", "path", "why"),
    [
        ("{broken", "", "not JSON"),
        ("[1]", "", "not a JSON object"),
        ('{"x": NaN}', "", "not a JSON number"),
        ('{"type": 3}', "/type", "has a type"),
        ('{"type": "session", "id": "b"}', "/type", "one header"),
        ('{"type": "message"}', "/id", "has an id"),
        (GOOD, "/id", "there already"),
        ('{"type": "label", "id": "b", "parentId": "z"}', "/parentId", "not an entry before"),
        ('{"type": "label", "id": "b", "parentId": "a"}', "/targetId", "must be text"),
        ('{"type": "message", "id": "b", "message": 3}', "/message", "JSON object"),
        (
            '{"type": "message", "id": "b", "message": {"role": "user", "content": [{}]}}',
            "/message/content/0",
            "not a block",
        ),
        (
            '{"type": "message", "id": "b", "message": {"role": "assistant", "stopReason": "x"}}',
            "/message/stop_reason",
            "not a stop reason",
        ),
    ],
    ids=[
        "torn",
        "list",
        "number",
        "type",
        "second-header",
        "no-id",
        "same-id",
        "parent",
        "label",
        "no-message",
        "block",
        "reason",
    ],
)
def test_a_bad_line_is_named_with_its_number(line, path, why):
    """And the place in it; nothing of the session is given."""
    lines = [json.dumps(HEAD), "", GOOD, line]
    with pytest.raises(ValueRefused, match=why) as caught:
        pi.read_session(lines)
    assert (caught.value.facts["line"], caught.value.path) == (4, path)
    assert str(caught.value).startswith("line 4:")


def test_a_torn_line_may_be_left_out():
    """As pi does; which ones is told."""
    session = pi.read_session([json.dumps(HEAD), GOOD, '{"type": "mess'], skip_bad_lines=True)
    assert [m.text for m in session.messages] == ["x"]
    assert list(session.bad_lines) == [3]
    for lines in ([], ["{"], [GOOD], [json.dumps({**HEAD, "version": 4})]):
        with pytest.raises(ValueRefused, match="line 1"):
            pi.read_session(lines, skip_bad_lines=True)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    """One that exists is not touched, unless that is asked for."""
    path = tmp_path / "s.jsonl"
    messages = [pi.UserMessage("a\u2028b", timestamp=1), pi.AssistantMessage("c", timestamp=2)]
    written = pi.write_session(path, messages, session_id="s", cwd="/x")
    assert pi.read_session(path) == written
    head, first, second = map(json.loads, path.read_text(encoding="utf-8").split("\n")[:-1])
    assert (head["version"], head["id"], head["cwd"]) == (3, "s", "/x")
    assert (first["parentId"], second["parentId"]) == (None, first["id"])
    assert first["timestamp"] == "1970-01-01T00:00:00.001Z"
    assert second["message"]["stopReason"] == "stop"
    assert second["message"]["usage"]["totalTokens"] == 0
    with pytest.raises(ValueRefused, match="overwrite=True"):
        pi.write_session(path, messages)
    with pytest.raises(ValueRefused, match="cannot be written"):
        pi.write_session(path, [pi.CustomMessage("n", {1, 2})], overwrite=True)
    assert pi.read_session(path) == written
    more = written.extended([pi.UserMessage("d", timestamp=3)])
    pi.write_session(path, more, overwrite=True)
    assert [m.text for m in pi.read_session(path).messages] == ["a\u2028b", "c", "d"]
    assert [p.name for p in tmp_path.iterdir()] == ["s.jsonl"]


async def test_a_session_continues_in_a_context_and_back(tmp_path):
    """Read, appended, answered, written: pi reads what was added."""
    session = pi.read_session(_file(_message(_user("hi")), _message(ANSWER), _message(RESULT)))
    async with open_stores(f"sqlite:///{tmp_path / 'app.db'}") as stores:
        await stores.messages.append("ada", session.messages)
        model = ScriptedProvider([text("done")])
        async with Agent("ada", llm_provider=model, stores=stores) as agent:
            await agent.execute_turn(None)
            said = await agent.get_messages()
    assert said[:3] == session.messages
    back = pi.read_session(session.extended(said[3:]).lines())
    assert [m.role for m in back.messages] == ["user", "assistant", "toolResult", "assistant"]
    assert back.messages[-1].text == "done"
