"""
Servers that refuse what the real ones refuse, each with its source.

Written from the vendors' documentation and from reports of refused requests, apart from the table
of dialects that writes requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.wire.fake_openai import check_request

from looopy.testing import ScriptedProvider, text, tool_call

Problems = list[tuple[str, str]]


@dataclass(frozen=True)
class Strict:
    """
    One server.

    Attributes:
        url: Its real address, by which a provider knows it.
        model: One that it has.
        check: What it refuses in a body.
        source: Where that is written or was seen.
    """

    url: str
    model: str
    check: Callable[[Mapping[str, Any]], Problems]
    source: str


def _assistants(body: Mapping[str, Any]) -> Sequence[tuple[int, Mapping[str, Any]]]:
    return [(i, m) for i, m in enumerate(body["messages"]) if m["role"] == "assistant"]


def deepseek(body: Mapping[str, Any]) -> Problems:
    """With tools, each answer needs its reasoning, though it be empty."""
    text = "The `reasoning_content` in the thinking mode must be passed back to the API."
    lacking = [i for i, m in _assistants(body) if "reasoning_content" not in m]
    return check_request(body) + [(f"messages[{i}]", text) for i in lacking if body.get("tools")]


def kimi(body: Mapping[str, Any]) -> Problems:
    """Each answer with calls needs reasoning that is not empty; sampling is fixed."""
    problems = check_request(body)
    text = "thinking is enabled but reasoning_content is missing in assistant tool call message"
    problems += [
        (f"messages[{i}]", f"{text} at index {i}")
        for i, m in _assistants(body)
        if m.get("tool_calls") and not m.get("reasoning_content")
    ]
    if body.get("temperature", 1) != 1:
        problems.append(("", "invalid temperature: only 1 is allowed for this model"))
    return problems


def mistral(body: Mapping[str, Any]) -> Problems:
    """Ids of nine letters and digits, no user straight after a tool, no answer at the end."""
    problems = check_request(body)
    ids = [c["id"] for _, m in _assistants(body) for c in m.get("tool_calls") or ()]
    ids += [m["tool_call_id"] for m in body["messages"] if "tool_call_id" in m]
    problems += [
        ("", f"Tool call id was {one} but must be a-z, A-Z, 0-9, with a length of 9.")
        for one in ids
        if not re.fullmatch("[a-zA-Z0-9]{9}", one)
    ]
    roles = [m["role"] for m in body["messages"]]
    if ("tool", "user") in pairwise(roles):
        problems.append(("", "Unexpected role 'user' after role 'tool'"))
    if roles[-1] not in ("user", "tool"):
        problems.append(("", f"Expected last role User or Tool but got {roles[-1]}"))
    return problems


def gemma(body: Mapping[str, Any]) -> Problems:
    """The template of llama.cpp: user and assistant in turns, tools between them aside."""
    roles = [m["role"] for m in body["messages"] if m["role"] != "system"]
    turns = [r for r in roles if r != "tool"]
    bad = turns[0] != "user" or any(one == two == "user" for one, two in pairwise(turns))
    bad = bad or ("assistant", "assistant") in pairwise(roles)
    text = "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/..."
    return check_request(body) + ([("", text)] if bad else [])


def gpt_5(body: Mapping[str, Any]) -> Problems:
    """A model that samples as it likes."""
    problems = check_request(body)
    for name in ("temperature", "top_p"):
        if body.get(name, 1) != 1:
            text = f"Unsupported value: '{name}' does not support {body[name]} with this model."
            problems.append((name, text))
    if "logprobs" in body:
        problems.append(("logprobs", "Unsupported parameter: 'logprobs' is not supported"))
    return problems


def bad_schema(schema: Any, *, lookaround: bool, path: str = "") -> str | None:
    """
    The reason why the schema of a tool is refused.

    https://github.com/dearlordylord/huly-mcp/issues/66, https://github.com/vercel/ai/pull/21037,
    https://github.com/ComposioHQ/composio/issues/3500
    """
    if isinstance(schema, list):
        found = (bad_schema(one, lookaround=lookaround, path=path) for one in schema)
        return next((one for one in found if one), None)
    if not isinstance(schema, dict):
        return None
    if not path and (schema.get("type") != "object" or schema.keys() & ROOT_REFUSED):
        return "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not'"
    kind = schema.get("type")
    array = kind == "array" or (isinstance(kind, list) and "array" in kind)
    if array and not isinstance(schema.get("items"), dict):
        return f"In context={path}, array schema missing items."
    if isinstance(schema.get("exclusiveMinimum"), bool) or "draft-04" in schema.get("$schema", ""):
        return "JSON schema is invalid. It must match JSON Schema draft 2020-12"
    if isinstance(schema.get("pattern"), str) and "(?!" in schema["pattern"] and not lookaround:
        return f"Invalid JSON schema: regex lookaround is not supported. Found at {path}"
    if not str(schema.get("$ref", "#")).startswith("#"):
        return f"a reference to another document at {path}"
    for name, one in schema.items():
        inner = one.values() if name in NAMED and isinstance(one, dict) else [one]
        keys = one if name == "properties" and isinstance(one, dict) else ()
        if not all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in keys):
            return "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
        if name == "patternProperties" and not lookaround and any("(?!" in key for key in one):
            return "regex lookaround is not supported"
        found = (bad_schema(x, lookaround=lookaround, path=f"{path}/{name}") for x in inner)
        if problem := next((x for x in found if x), None):
            return problem
    return None


ROOT_REFUSED = {"oneOf", "anyOf", "allOf", "enum", "not", "$ref"}
NAMED = ("properties", "patternProperties", "$defs", "definitions")
LLAMA = "http://127.0.0.1:8080/v1"
OPENAI = "https://api.openai.com/v1"
STRICT = {
    "deepseek": Strict(
        "https://api.deepseek.com",
        "deepseek-v4-pro",
        deepseek,
        "https://api-docs.deepseek.com/guides/thinking_mode",
    ),
    "kimi": Strict(
        "https://api.moonshot.ai/v1",
        "kimi-k2.6",
        kimi,
        "https://github.com/theopenco/llmgateway/pull/2093",
    ),
    "mistral": Strict(
        "https://api.mistral.ai/v1",
        "mistral-large-latest",
        mistral,
        "https://github.com/mistralai/mistral-vibe/issues/1075",
    ),
    "gemma": Strict(LLAMA, "gemma", gemma, "https://github.com/ggml-org/llama.cpp/issues/21879"),
    "devstral": Strict(
        LLAMA,
        "devstral-small-2",
        lambda body: [*gemma(body), *(p for p in mistral(body) if "length of 9" in p[1])],
        "https://github.com/ggml-org/llama.cpp/issues/19851",
    ),
    "gpt-5": Strict(
        OPENAI, "gpt-5-mini", gpt_5, "https://platform.openai.com/docs/guides/latest-model"
    ),
}


def other_model() -> ScriptedProvider:
    """The model that a conversation began with: a call under a long id, and an answer."""
    return ScriptedProvider([tool_call("add", a=1, b=2), text("3")])
