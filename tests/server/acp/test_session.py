"""A session shows its context, whoever runs the turns, and asks the person."""

import asyncio

import acp
import pytest
from acp import schema
from tests.server.acp.kit import Editor, chosen, connected, said
from tests.server.obedient import build

from looopy import AuthContext, open_stores
from looopy.server.protocols.acp.session import Session
from looopy.server.protocols.acp.updates import Transcript
from looopy.types.event import StatusChange
from looopy.types.state import AgentStatus


@pytest.fixture
async def stores():
    """Empty stores."""
    async with open_stores("memory:") as opened:
        yield opened


async def test_a_loaded_session_looks_as_it_was_live(stores):
    """Texts, thoughts and calls, with their ids; approvals and questions too."""
    live, later = Editor(chosen("allow", args={"cents": 3}), "reject"), Editor()
    async with connected(stores, live) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        for words in ("hello", "read", "write", "pay", "pay", "choose"):
            response = await client.prompt(made.session_id, said(words))
            assert response.stop_reason == "end_turn"
        assert "Which?\n- left\n- right" in live.text()
        answered = await client.prompt(made.session_id, said("RIGHT"))
        assert answered.field_meta["looopy"]["outcome"] == "completed"
        assert answered.usage.total_tokens
    async with connected(stores, later) as client:
        [listed] = (await client.list_sessions(cwd="/w")).sessions
        assert (listed.session_id, listed.title) == (made.session_id, "hello")
        assert (await client.list_sessions(cwd="/elsewhere")).sessions == []
        await client.load_session(cwd="/w", session_id=made.session_id, mcp_servers=[])
        await later.until(lambda: later.updates[-1].session_update == "available_commands_update")
    seen = later.transcript()
    shown = {key: value for key, value in live.transcript().items() if key in seen}
    prompts = {key for key in seen if key[0] == "user_message_chunk"}
    assert [seen[key] for key in sorted(prompts)] == [
        "hello", "read", "write", "pay", "pay", "choose",
    ]  # fmt: skip
    assert shown == {key: value for key, value in seen.items() if key not in prompts}
    calls = [value for key, value in seen.items() if isinstance(key, str)]
    assert [(call["kind"], call["status"]) for call in calls] == [
        ("read", "completed"),
        ("move", "completed"),
        ("other", "completed"),
        ("other", "failed"),
        ("other", "completed"),
    ]
    assert calls[0]["locations"] == [{"path": "/w/src/a.py", "line": 7}]
    [written, diff] = calls[1]["content"]
    assert written["content"]["text"] == "written"
    assert (diff["path"], diff["oldText"], diff["newText"]) == ("/w/a.txt", "old", "new")
    assert "paid 3" in str(calls[2]["content"])
    assert calls[4]["content"][0]["content"]["text"] == "right"


@pytest.mark.parametrize("delay_s", [0.5, 12.0])
def test_a_long_wait_for_the_model_is_a_notice(delay_s):
    """It is marked as not the model's; a short wait leaves no sentence in the transcript."""
    waits = {"status": AgentStatus.BUSY, "attempt": 2, "delay_s": delay_s, "rate_limited": True}
    shown = list(Transcript("/w").show(StatusChange(context_id="c", turn=1, iteration=1, **waits)))
    expected = ["The model is busy. Trying again in 12 s."] if delay_s > 1 else []
    assert [one.content.text for one in shown] == expected
    assert all("notice" in one.field_meta["looopy"] for one in shown)


async def test_an_approval_that_is_given_elsewhere_closes_the_question(stores):
    """The prompt follows the turn of the other, and ends with it."""
    editor = Editor(None, None)
    async with connected(stores, editor) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        prompt = asyncio.create_task(client.prompt(made.session_id, said("pay")))
        await editor.until(lambda: editor.asked)
        [(call, options)] = editor.asked
        assert (call.title, call.raw_input) == ("pay cents=500", {"cents": 500})
        assert [option.kind for option in options] == ["allow_once", "reject_once"]
        async with build(made.session_id, stores) as other:
            [request] = other.state.pending
            await other.execute_turn(None, inputs={request.request_id: True})
            response = await prompt
            assert response.field_meta["looopy"] == {
                "turn": 2, "outcome": "completed", "stop_reason": "stop",
            }  # fmt: skip
            assert "Result: paid 500" in editor.text()
            await other.execute_turn("from elsewhere")  # and no prompt runs here
            await editor.until(lambda: "You said: from elsewhere" in editor.text())
        shown = [u for u in editor.updates if u.session_update == "user_message_chunk"]
        assert [chunk.content.text for chunk in shown] == ["from elsewhere"]


async def test_a_question_that_is_closed_keeps_waiting_and_can_be_asked_again(stores):
    """By a cancelled outcome, a cancelled prompt, or the end of the process."""
    editor = Editor(schema.DeniedOutcome(outcome="cancelled"), None)
    async with connected(stores, editor) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        closed = await client.prompt(made.session_id, said("pay"))
        assert closed.stop_reason == "end_turn"
        assert len(closed.field_meta["looopy"]["pending"]) == 1
        again = asyncio.create_task(client.prompt(made.session_id, said("/continue")))
        await editor.until(lambda: len(editor.asked) == 2)
        await client.cancel(made.session_id)
        assert (await again).stop_reason == "cancelled"
    editor = Editor(chosen("reject", reason="No!"))
    async with connected(stores, editor) as client:
        loaded = await client.load_session(cwd="/w", session_id=made.session_id, mcp_servers=[])
        [pending] = loaded.field_meta["looopy"]["pending"]
        assert pending["tool_name"] == "pay"
        assert "pay waits for approval: `/continue` asks again." in editor.text()
        await client.prompt(made.session_id, [])
        assert "The user's reason: No!" in editor.text()
        with pytest.raises(acp.RequestError) as refused:
            await client.prompt(made.session_id, said("/continue"))
        assert (refused.value.code, refused.value.data["code"]) == (-32600, "cannot_continue")


async def test_a_question_is_a_form_if_the_editor_shows_forms(stores):
    """A form that is closed leaves the question open: `/continue` or words answer it as well."""
    closed = schema.CancelElicitationResponse(action="cancel")
    filled = schema.AcceptElicitationResponse(action="accept", content={"value": "right"})
    editor = Editor(filled, closed)
    async with connected(stores, editor, forms=True) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        await client.prompt(made.session_id, said("choose"))
        [(message, form)] = editor.asked
        field = form.requested_schema.properties["value"]
        assert (message, field.type, field.enum) == ("Which?", "string", ["left", "right"])
        calls = {u.tool_call_id for u in editor.updates if u.session_update == "tool_call"}
        assert form.tool_call_id in calls
        assert "Result: right" in editor.text()
        response = await client.prompt(made.session_id, said("choose"))
        assert len(response.field_meta["looopy"]["pending"]) == 1
        editor.answers.append(filled)
        await client.prompt(made.session_id, said("/continue"))
        assert len(editor.asked) == 3
        assert editor.text().count("Result: right") == 2


async def test_a_mode_allows_calls_if_the_application_offers_it(stores):
    """Nobody is asked then; a session that is opened again asks."""
    editor = Editor("reject")
    async with connected(stores, editor, offer_allow=True) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        assert made.modes.current_mode_id == "ask"
        assert [mode.id for mode in made.modes.available_modes] == ["ask", "allow"]
        await client.set_session_mode(made.session_id, "allow")
        await client.prompt(made.session_id, said("pay"))
        assert ("Result: paid 500" in editor.text(), editor.asked) == (True, [])
        with pytest.raises(acp.RequestError) as refused:
            await client.set_session_mode(made.session_id, "all")
        assert refused.value.data["path"] == "/modeId"
    async with connected(stores, editor, offer_allow=True) as client:
        loaded = await client.load_session(cwd="/w", session_id=made.session_id, mcp_servers=[])
        assert loaded.modes.current_mode_id == "ask"
        await client.prompt(made.session_id, said("pay"))
        assert len(editor.asked) == 1
    async with connected(stores, editor) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        assert made.modes is None
        with pytest.raises(acp.RequestError):
            await client.set_session_mode(made.session_id, "allow")


async def test_errors_have_the_form_of_the_protocol_and_the_place(stores):
    """Nothing is stored then."""
    editor = Editor(chosen("maybe"), chosen("allow", args={"cents": "x"}))
    async with connected(stores, editor) as client:

        async def refusal(request):
            with pytest.raises(acp.RequestError) as refused:
                await request
            return refused.value.code, refused.value.data

        made = await client.new_session(cwd="/w", mcp_servers=[])
        prompt = client.prompt
        assert await refusal(client.new_session(cwd="w", mcp_servers=[])) == (
            -32602, {"code": "value_refused", "path": "/cwd"},
        )  # fmt: skip
        code, data = await refusal(client.load_session(cwd="/w", session_id="none", mcp_servers=[]))
        assert (code, data["code"]) == (-32002, "context_not_found")
        code, data = await refusal(prompt("none", said("x")))
        assert (code, data["path"]) == (-32002, "/sessionId")
        blocks = [*said("x"), *said("lone \ud800"), acp.image_block("AAAA", "image/png")]
        code, data = await refusal(prompt(made.session_id, blocks))
        assert (code, data["path"]) == (-32602, "/prompt/1/text")
        code, data = await refusal(client.list_sessions(cursor="no page"))
        assert (code, data["path"]) == (-32602, "/cursor")
        code, _ = await refusal(client.authenticate(method_id="x"))
        assert code == -32602
        assert (await client.list_sessions()).sessions == []
        code, data = await refusal(prompt(made.session_id, said("fail")))
        assert (code, data["turn"], data["stop_reason"]) == (-32603, 1, "error")
        code, data = await refusal(prompt(made.session_id, said("pay")))
        assert (code, data["path"]) == (-32602, "/outcome/optionId")
        code, data = await refusal(prompt(made.session_id, said("/continue")))
        assert (code, data["path"]) == (-32602, "/inputs/2-call_1/args/cents")


async def test_a_second_prompt_of_a_session_is_refused_while_one_runs(
    stores, tmp_path, monkeypatch
):
    """A second one is refused, a cancelled one says so, and a load in between changes nothing."""
    monkeypatch.setenv("LOOOPY_TEST_FOLDER", str(tmp_path))
    editor = Editor()
    async with connected(stores, editor) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        running = asyncio.create_task(client.prompt(made.session_id, said("wait")))
        await editor.until(lambda: "50%" in str(editor.updates))
        await client.load_session(cwd="/w", session_id=made.session_id, mcp_servers=[])
        with pytest.raises(acp.RequestError) as busy:
            await client.prompt(made.session_id, said("more"))
        assert (busy.value.code, busy.value.data) == (-32600, {"code": "agent_busy"})
        await client.cancel(made.session_id)
        assert (await running).stop_reason == "cancelled"
        await client.close_session(made.session_id)
        with pytest.raises(acp.RequestError):
            await client.prompt(made.session_id, said("closed"))
        forked = await client.fork_session(session_id=made.session_id, cwd="/w")
        await client.prompt(forked.session_id, said("hello"))
        assert "You said: hello" in editor.text()


async def test_a_session_belongs_to_its_actor(stores):
    """Another one neither lists nor loads it."""
    ada, ben = Editor(), Editor()
    async with connected(stores, ada, actor=AuthContext("ada")) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        await client.prompt(made.session_id, said("hello"))
        assert len((await client.list_sessions()).sessions) == 1
    for actor in (AuthContext("ben"), None):
        async with connected(stores, ben, actor=actor) as client:
            assert (await client.list_sessions()).sessions == []
            with pytest.raises(acp.RequestError) as refused:
                await client.load_session(cwd="/w", session_id=made.session_id, mcp_servers=[])
            assert refused.value.code == -32002


async def test_a_load_at_the_end_of_a_turn_keeps_the_prompt(stores, monkeypatch):
    """The end is in what was loaded, so nobody shows it any more; the prompt answers."""
    show, at_the_end = Session._show, asyncio.Event()

    async def stopped(self, event):
        if event.type == "turn_end" and not at_the_end.is_set():
            at_the_end.set()
            await asyncio.Event().wait()
        await show(self, event)

    monkeypatch.setattr(Session, "_show", stopped)
    async with connected(stores, Editor()) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        running = asyncio.create_task(client.prompt(made.session_id, said("hello")))
        await at_the_end.wait()
        await client.load_session(cwd="/w", session_id=made.session_id, mcp_servers=[])
        response = await running
        assert (response.stop_reason, response.usage.output_tokens > 0) == ("end_turn", True)


async def test_a_session_that_cannot_be_shown_fails_its_prompt(stores, monkeypatch):
    """The next prompt begins to show it anew."""
    show = Session._show

    async def broken(self, event):
        raise ValueError("a mistake")

    async with connected(stores, Editor()) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        monkeypatch.setattr(Session, "_show", broken)
        with pytest.raises(acp.RequestError, match="ValueError"):
            await client.prompt(made.session_id, said("hello"))
        monkeypatch.setattr(Session, "_show", show)
        response = await client.prompt(made.session_id, said("again"))
        assert response.field_meta["looopy"]["turn"] == 2
