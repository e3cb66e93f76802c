"""A second answer in the stream of the first breaks the stream; odd ids and roles do not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.errors import InvalidLLMResponse
from looopy.llm.accumulate import Accumulator
from looopy.llm.anthropic.events import EventReader as Anthropic
from looopy.llm.openai.chat import ChunkReader
from looopy.llm.openai.responses_events import EventReader as Responses

ARGUMENTS = '{"cents": 900}'


def accumulator():
    return Accumulator(api="api", provider="p", model="m")


def read(reader, answer, said):
    """The final message of a stream of JSON values."""
    for one in said:
        reader.feed(json.dumps(one))
    done = {} if isinstance(reader, Anthropic) else {"said_done": False}
    reader.end(**done)
    return answer.snapshot()


def chat(said, **options):
    """A message of chat completions."""
    answer = accumulator()
    return read(ChunkReader(answer, **options), answer, said)


def chunk(answer_id, delta, finish=None, **more):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": answer_id, "choices": [choice], **more}


def call(call_id, arguments=ARGUMENTS, **delta):
    function = {"name": "pay", "arguments": arguments}
    return {**delta, "tool_calls": [{"index": 0, "id": call_id, "function": function}]}


@st.composite
def chunks(draw, answer_id, call_id):
    """An answer with a call, as a server that keeps to its id."""
    words = draw(st.lists(st.sampled_from(["I ", "pay ", "now"]), max_size=3))
    first = {"role": "assistant", "content": ""}
    deltas = [{"content": word} for word in words]
    deltas.append(call(call_id, ARGUMENTS[:5]))
    deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[5:]}}]})
    if draw(st.booleans()):
        deltas = [first, *deltas]
    else:
        deltas[0] = {"role": "assistant", **deltas[0]}
    said = [chunk(answer_id, delta) for delta in deltas]
    return [*said, chunk(answer_id, {}, "tool_calls")]


def blocks(answer_id, call_id, words, *, starts=True):
    """An answer with a call, as Anthropic sends it; without its first event if not *starts*."""
    said = [{"type": "message_start", "message": {"id": answer_id}}] if starts else []
    contents = [({"type": "text", "text": ""}, "text_delta", "text", one) for one in words]
    tool = {"type": "tool_use", "id": call_id, "name": "pay", "input": {}}
    contents.append((tool, "input_json_delta", "partial_json", ARGUMENTS))
    for index, (block, kind, name, text) in enumerate(contents):
        said.append({"type": "content_block_start", "index": index, "content_block": block})
        delta = {"type": kind, name: text}
        said.append({"type": "content_block_delta", "index": index, "delta": delta})
        said.append({"type": "content_block_stop", "index": index})
    return [*said, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}]


def items(answer_id, call_id, words):
    """An answer with a call, as the Responses API sends it."""
    begun = {"id": answer_id, "status": "in_progress"}
    said = [{"type": "response.created", "response": begun}]
    said.append({"type": "response.in_progress", "response": begun})
    for place, word in enumerate(words):
        head = {"type": "message", "id": f"msg_{call_id}_{place}"}
        at = {"output_index": place}
        said.append({"type": "response.output_item.added", **at, "item": head})
        said.append({"type": "response.output_text.delta", **at, "delta": word})
        whole = {**head, "content": [{"type": "output_text", "text": word}]}
        said.append({"type": "response.output_item.done", **at, "item": whole})
    head = {"type": "function_call", "call_id": call_id, "name": "pay", "arguments": ""}
    at = {"output_index": len(words)}
    said.append({"type": "response.output_item.added", **at, "item": head})
    said.append({"type": "response.function_call_arguments.delta", **at, "delta": ARGUMENTS})
    whole = {**head, "arguments": ARGUMENTS}
    said.append({"type": "response.output_item.done", **at, "item": whole})
    return [*said, {"type": "response.completed", "response": {"id": answer_id}}]


def is_broken(error):
    assert error.value.retryable
    assert "the beginning of another answer" in str(error.value)


WORDS = st.lists(st.sampled_from(["I pay", "now"]), min_size=0, max_size=2)


@given(chunks("a", "call_a"), chunks("b", "call_b"), st.data())
def test_second_answer_among_chunks_breaks_the_stream(first, second, data):
    """Wherever the first breaks off after some content, and even after its end."""
    spoken = next(i for i, one in enumerate(first) if set(one["choices"][0]["delta"]) - {"role"})
    spoken += first[spoken]["choices"][0]["delta"].get("content") == ""
    cut = data.draw(st.integers(spoken + 1, len(first)))
    with pytest.raises(InvalidLLMResponse) as error:
        chat(first[:cut] + second)
    is_broken(error)


def test_second_answer_under_the_id_of_the_first_breaks_the_stream():
    """A gateway may give both its own id; the second begins with a role alone, as the first did."""
    opening = chunk("a", {"role": "assistant", "content": None})
    end = chunk("a", {}, "tool_calls")
    with pytest.raises(InvalidLLMResponse) as error:
        chat([opening, chunk("a", call("x")), opening, chunk("a", call("y")), end])
    is_broken(error)


def test_whole_second_answer_in_one_chunk_after_the_first_breaks_the_stream():
    """Each ends in its only chunk."""
    both = [chunk(one, call(one, role="assistant"), "tool_calls") for one in ("a", "b")]
    with pytest.raises(InvalidLLMResponse) as error:
        chat(both)
    is_broken(error)


SERVERS = {
    "another id with each chunk": lambda i: (f"chat.id.{i}", {}),
    "another id and the role with each chunk": lambda i: (f"chat.id.{i}", {"role": "assistant"}),
    "no id": lambda _: (None, {}),
    "an empty id": lambda _: ("", {}),
    "the role with each chunk": lambda _: ("a", {"role": "assistant"}),
    "an id of the gateway first": lambda i: ("a" if i else "gateway", {}),
}


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_odd_ids_and_roles_are_one_answer(server):
    """As servers are known to send them."""
    deltas = [{"role": "assistant", "content": ""}, {"content": "I "}, {"content": "pay"}]
    said = [chunk(name, {**more, **d}) for i, d in enumerate(deltas) for name, more in [server(i)]]
    for i, delta in enumerate([call("x"), {}], 3):
        name, more = server(i)
        said.append(chunk(name, {**more, **delta}, None if delta else "tool_calls"))
    said.append({"id": server(5)[0], "choices": [], "usage": {"prompt_tokens": 1}})
    message = chat(said)
    assert message.text == "I pay"
    assert [one.id for one in message.tool_calls] == ["x"]


def test_role_amid_an_answer_is_one_answer():
    """With a call, with the reason to finish, and with the usage."""
    said = [chunk("a", {"role": "assistant", "content": ""}), chunk("a", {"content": "I pay"})]
    said.append(chunk("a", call("x", role="assistant", content="")))
    said.append(chunk("a", {"role": "assistant", "content": ""}, "tool_calls"))
    said.append(chunk("a", {"role": "assistant", "content": ""}, usage={"prompt_tokens": 1}))
    assert [one.id for one in chat(said).tool_calls] == ["x"]


def test_ids_that_are_not_the_servers_are_not_compared():
    """A library that makes ids of the time has another one after a second."""
    said = [chunk("1", {"content": "I "}), chunk("1", {"content": "pay"})]
    said += [chunk("2", {"content": " now"}), chunk("2", {}, "stop")]
    assert chat(said, ids=False).text == "I pay now"


@given(WORDS, WORDS, st.booleans(), st.data())
def test_second_answer_among_blocks_breaks_the_stream(words, others, starts, data):
    """With its own `message_start`, or without one: its blocks have numbers that were taken."""
    first = blocks("msg_a", "call_a", words)
    cut = data.draw(st.integers(2, len(first)))
    answer = accumulator()
    with pytest.raises(InvalidLLMResponse) as error:
        read(Anthropic(answer), answer, first[:cut] + blocks("msg_b", "b", others, starts=starts))
    is_broken(error)


def test_second_start_amid_blocks_breaks_the_stream_whatever_their_numbers():
    """A gateway may number the blocks of both answers."""
    answer = accumulator()
    again = blocks("b", "y", [])
    for event in again[1:4]:
        event["index"] = 1
    with pytest.raises(InvalidLLMResponse) as error:
        read(Anthropic(answer), answer, [*blocks("a", "x", [])[:-1], *again])
    is_broken(error)


@pytest.mark.parametrize("again", ["msg_a", "msg_b"])
def test_second_start_before_the_first_block_is_one_answer(again):
    """Some gateways send their own and the server's."""
    first, *rest = blocks("msg_a", "x", ["I pay"])
    answer = accumulator()
    second = {"type": "message_start", "message": {"id": again}}
    message = read(Anthropic(answer), answer, [first, second, *rest])
    assert (message.text, message.response_id) == ("I pay", again)


def test_whole_answer_after_blocks_breaks_the_stream():
    """As it comes from a server that does not stream."""
    answer = accumulator()
    tool = {"type": "tool_use", "id": "y", "name": "pay", "input": {"cents": 900}}
    whole = {"type": "message", "id": "b", "content": [tool], "stop_reason": "tool_use"}
    with pytest.raises(InvalidLLMResponse) as error:
        read(Anthropic(answer), answer, [*blocks("a", "x", [])[:-1], whole])
    is_broken(error)


@given(WORDS, WORDS, st.integers(0, 1), st.data())
def test_second_answer_among_items_breaks_the_stream(words, others, left_out, data):
    """With its `response.created`, or from the event after it."""
    first = items("resp_a", "call_a", words)
    cut = data.draw(st.integers(4, len(first)))
    answer = accumulator()
    with pytest.raises(InvalidLLMResponse) as error:
        read(Responses(answer), answer, first[:cut] + items("resp_b", "b", others)[left_out:])
    is_broken(error)


def test_item_after_the_end_breaks_the_stream():
    """Without any event that begins an answer."""
    answer = accumulator()
    with pytest.raises(InvalidLLMResponse) as error:
        read(Responses(answer), answer, items("a", "x", []) + items("b", "y", [])[2:])
    is_broken(error)


def test_second_created_before_the_first_item_is_one_answer():
    """Some gateways send their own and the server's; and a proxy may change the id at the end."""
    said = items("resp_a", "x", ["I pay"])
    said.insert(1, {"type": "response.created", "response": {"id": "resp_b"}})
    said[-1]["response"]["id"] = "resp_c"
    answer = accumulator()
    assert read(Responses(answer), answer, said).text == "I pay"
