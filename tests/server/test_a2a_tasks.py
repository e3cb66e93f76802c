"""Turns as A2A tasks: ids, states, what a message means; without a server."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from a2a.types import ListTasksRequest, Message, Part, Role, TaskState
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict

from looopy import Agent, open_stores
from looopy.server.protocols.a2a import listing
from looopy.server.protocols.a2a.parts import answers, data_part, parts_of, read
from looopy.server.protocols.a2a.tasks import Chain, TaskReader, place_of, task_id_of
from looopy.stores.records import ContextRecord, ContextState, TurnRecord
from looopy.testing import ScriptedProvider, tool_call
from looopy.tools import request_input
from looopy.types.message import DocumentContent, ImageContent, TextContent, UserMessage
from looopy.types.state import Outcome, PendingKind, PendingRequest

ROOMS = ("journal", "messages", "artifacts")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("context_id", ["c", "a_b_1", "user:7:x", "-_.:", "task_1_c", "x" * 128])
def test_an_id_names_turn_and_context(context_id):
    """Both ways; no id has a colon, which ends one in the paths of A2A."""
    made = task_id_of(context_id, 12)
    assert place_of(made) == (context_id, 12)
    assert ":" not in made


@pytest.mark.parametrize(
    "text",
    ["", "task", "task_1", "task_0_c", "task_01_c", "task_-1_c", "task_1_a:b", "resp_1_c",
     "task_٣_c", "task_" + "9" * 30 + "_c", "5f0c1e9e-6f0e-4d9e-9d5e-1f1f1f1f1f1f"],
)  # fmt: skip
def test_no_other_text_is_an_id(text):
    """Each id has one spelling."""
    assert place_of(text) is None


def request(name="r1", kind=PendingKind.APPROVAL, **facts):
    """A pending request."""
    return PendingRequest(
        request_id=name, kind=kind, tool_name="send", args={}, tool_call_id="t", turn=1, **facts
    )


def chain(outcome, *, pending=(), resumable=None, later=0):
    """A task of one turn with this outcome."""
    record = ContextRecord(
        context_id="c",
        epoch=1,
        turn_count=1 + later,
        last_position=2,
        last_seq=4,
        state=ContextState(pending=pending, resumable=resumable),
        created_at=NOW,
        last_activity=NOW,
    )
    turn = TurnRecord(
        turn=1,
        outcome=outcome,
        start_seq=1,
        first_position=1,
        last_position=2,
        started_at=NOW,
    )
    return Chain(record, [turn])


STATES = [
    (chain(None), "WORKING"),
    (chain(Outcome.COMPLETED), "COMPLETED"),
    (chain(Outcome.FAILED), "FAILED"),
    (chain(Outcome.INTERRUPTED, resumable=1), "FAILED"),
    (chain(Outcome.CANCELLED), "CANCELED"),
    (chain(Outcome.INPUT_REQUIRED, pending=[request()]), "INPUT_REQUIRED"),
    (chain(Outcome.INPUT_REQUIRED), "CANCELED"),  # cleared or rewound
    (chain(Outcome.INPUT_REQUIRED, pending=[request()], later=1), "CANCELED"),
    (chain(Outcome.AUTH_REQUIRED, resumable=1), "AUTH_REQUIRED"),
    (chain(Outcome.AUTH_REQUIRED), "CANCELED"),
]


def test_a_task_is_input_required_only_while_its_request_is_open():
    """A question that is gone does not leave its task waiting."""
    for one, state in STATES:
        assert TaskState.Name(one.state) == f"TASK_STATE_{state}"
        assert one.settled == (state != "WORKING")
        assert one.over == (state in ("COMPLETED", "FAILED", "CANCELED"))


def said(*parts):
    """A message with these parts, as it is read."""
    message = Message(message_id="m", role=Role.ROLE_USER, parts=parts)
    return read(message, most_bytes=100)


@pytest.mark.parametrize("listed", [False, True])
async def test_a_task_that_asks_while_it_is_read_waits(listed):
    """Its turn ends between two reads of the store, which are then made again."""
    gate = asyncio.Event()

    async def late(_request):
        await gate.wait()
        return tool_call("request_input", prompt="Where?")

    async with (
        open_stores("memory:") as stores,
        Agent(
            "c", llm_provider=ScriptedProvider([late]), tools=[request_input], stores=stores
        ) as agent,
    ):
        turn = agent.execute_turn("Travel.")
        await turn.accepted()

        async def as_it_ends(context_id, *_auth):
            found = await stores.state.load(context_id)
            gate.set()
            await turn
            return found

        if listed:
            host = SimpleNamespace(authorise=as_it_ends, stores_for=lambda _auth: stores)
            call, reader = SimpleNamespace(auth=None), TaskReader(stores, "c", "")
            asked = ListTasksRequest(context_id="c")
            [task] = (await listing.tasks(host, asked, call, lambda *_: reader)).tasks
        else:
            torn = SimpleNamespace(**{name: getattr(stores, name) for name in ROOMS})
            torn.state = SimpleNamespace(load=as_it_ends)
            reader = TaskReader(torn, "c", "")
            task = await reader.task(await reader.find(1))
    assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert task.status.message.parts[0].text == "Where?"


def test_parts_become_blocks_and_blocks_parts():
    """Files by their type, or by their name; data as JSON, with whole numbers."""
    given = [
        Part(text="hi"),
        Part(raw=b"\x89PNG", media_type="image/png"),
        Part(url="https://x.invalid/a.pdf"),
        Part(raw=b"a,b", filename="t.csv"),
    ]
    heard = said(*given, data_part({"n": 3, "half": 0.5, "big": 1e300}))
    assert heard.blocks == (
        TextContent("hi"),
        ImageContent("iVBORw==", mime_type="image/png"),
        DocumentContent(url="https://x.invalid/a.pdf"),
        DocumentContent("YSxi", mime_type="text/csv", name="t.csv"),
    )
    assert heard.data == ({"n": 3, "half": 0.5, "big": 1e300},)
    assert isinstance(heard.data[0]["n"], int)
    shown = [MessageToDict(part) for part in parts_of(UserMessage(heard.blocks))]
    assert [{*part} & {"text", "raw", "url"} for part in shown] == [
        {"text"}, {"raw"}, {"url"}, {"raw"}
    ]  # fmt: skip
    with pytest.raises(ContentTypeNotSupportedError) as refused:
        said(Part(text="hi"), Part(raw=b"PK", media_type="application/zip"))
    assert refused.value.data == {"path": "/message/parts/1"}
    for bad in ((Part(),), (Part(text="x" * 101),)):
        with pytest.raises(InvalidParamsError):
            said(*bad)


ASK = request(kind=PendingKind.INPUT)
CITY = request(kind=PendingKind.INPUT, options=["Rome", 2])
COUNT = request(kind=PendingKind.INPUT, schema={"type": "integer"})
WORD = request(kind=PendingKind.INPUT, schema={"type": "string"})


@pytest.mark.parametrize(
    ("pending", "parts", "inputs"),
    [
        ([request()], [Part(text="Approve")], {"r1": True}),
        ([request()], [Part(text=" yes. ")], {"r1": True}),
        ([request()], [Part(text="No!")], {"r1": False}),
        ([request()], [Part(text="deny: too late")],
            {"r1": {"approved": False, "reason": "too late"}}),
        ([request()], [data_part({"approved": True, "note": "n"})],
            {"r1": {"approved": True, "note": "n"}}),
        ([request()], [data_part({"r1": False})], {"r1": False}),
        ([ASK], [Part(text="7")], {"r1": "7"}),
        ([WORD], [Part(text="7")], {"r1": "7"}),
        ([COUNT], [Part(text="7")], {"r1": 7}),
        ([CITY], [Part(text="Rome")], {"r1": "Rome"}),
        ([CITY], [Part(text="2")], {"r1": 2}),
        ([ASK, request("r2")], [data_part({"r1": "x", "r2": True})], {"r1": "x", "r2": True}),
        ([ASK, request("r2")], [data_part({"r2": True})], {"r2": True}),
    ],
)  # fmt: skip
def test_a_text_or_data_that_answers(pending, parts, inputs):
    """A text answers the one request, a data part answers by id."""
    assert answers(pending, said(*parts)) == (inputs, None)


@pytest.mark.parametrize(
    ("pending", "parts"),
    [
        ([request()], [Part(text="yes, but another")]),
        ([request()], [Part(text="perhaps")]),
        ([request(), request("r2")], [Part(text="approve")]),
        ([request(), request("r2")], [data_part({"r3": True})]),
        ([ASK], [Part(text="x"), data_part("y")]),
        ([ASK], [Part(raw=b"x", media_type="text/plain")]),
    ],
)
def test_a_message_without_a_decision_is_refused(pending, parts):
    """An approval is not guessed."""
    with pytest.raises(InvalidParamsError):
        answers(pending, said(*parts))


def test_an_answer_and_a_word_besides():
    """The text goes to the model after the answer."""
    inputs, more = answers([request()], said(data_part({"r1": True}), Part(text="Hurry.")))
    assert inputs == {"r1": True}
    assert more is not None
    assert more.text == "Hurry."
