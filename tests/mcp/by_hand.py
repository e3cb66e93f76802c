"""
MCP servers of 2025 that speak JSON by hand: liars, one that dies, and one that refuses.

Run as a script over standard input and output: `by_hand.py liar`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

OBJECT = {"type": "object", "properties": {}}
LIES = [
    {"name": "good", "description": "Be good.", "inputSchema": OBJECT},
    {"name": "no.usual/name", "inputSchema": OBJECT},
    {"name": "x" * 100, "inputSchema": OBJECT},
    {"name": "GOOD", "inputSchema": OBJECT},
    {"name": "///", "inputSchema": OBJECT},
    {"name": "typeless", "inputSchema": {"properties": {"a": {"type": "integer"}}}},
    {"name": "list_schema", "inputSchema": ["object"]},
    {"name": "no_schema"},
    {"name": "array_type", "inputSchema": {"type": "array"}},
    {
        "name": "odd_type",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "strnig"}}},
    },
    {"name": "abroad", "inputSchema": {"type": "object", "$ref": "http://x.invalid/s.json"}},
    {"name": 7, "inputSchema": OBJECT},
    "no tool at all",
    {"name": "huge", "inputSchema": {"type": "object", "description": "d" * 100_000}},
    {"name": "wordy", "description": "w" * 50_000, "inputSchema": OBJECT},
    {"name": "odd", "title": 5, "annotations": {"readOnlyHint": "perhaps"}, "inputSchema": OBJECT},
    {
        "name": "promises",
        "inputSchema": OBJECT,
        "outputSchema": {"type": "object", "required": ["x"]},
    },
]


MORTAL = [
    {"name": "die", "inputSchema": OBJECT},
    {"name": "die_once", "inputSchema": OBJECT, "annotations": {"readOnlyHint": True}},
    {"name": "count", "inputSchema": OBJECT, "annotations": {"idempotentHint": True}},
]
REFUSING = [
    {"name": "refuse", "inputSchema": OBJECT},
    {"name": "refuse_reading", "inputSchema": OBJECT, "annotations": {"readOnlyHint": True}},
    {"name": "wait", "inputSchema": OBJECT},
]
COUNT = itertools.count(1)


def answer(behaviour: str, name: str) -> str:
    """What a tool answers; one of a mortal server may die of it."""
    if behaviour != "mortal":
        return "cut \ud83d" if behaviour == "cuts" else "fine"
    if name == "count":
        return f"call {next(COUNT)} of {os.getpid()}"
    if name == "die_once" and "died" in Path(os.environ["WORKSHOP_NOTES"]).read_text():
        return "alive"
    with Path(os.environ["WORKSHOP_NOTES"]).open("a") as file:
        file.write("died\n")
    os._exit(3)


def refuse(message: Any, waiting: list[Any]) -> bool:
    """Answer a call with the error in `WORKSHOP_ERROR`; after it, answer each call that waits."""
    if message["method"] != "tools/call":
        return False
    name, number = message["params"]["name"], message["id"]
    with Path(os.environ["WORKSHOP_NOTES"]).open("a") as file:
        file.write(f"{name} {os.getpid()}\n")
    if name == "wait":
        waiting.append(number)
        return True
    replies = [{"id": number, "error": json.loads(os.environ["WORKSHOP_ERROR"])}]
    content = [{"type": "text", "text": "waited"}]
    replies += [{"id": one, "result": {"content": content}} for one in waiting]
    waiting.clear()
    for one in replies:
        print(json.dumps({"jsonrpc": "2.0", **one}), flush=True)
    return True


def by_hand(behaviour: str) -> None:
    """A server of 2025 that does as *behaviour* says."""
    waiting: list[Any] = []
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if number is None or (behaviour == "refuses" and refuse(message, waiting)):
            continue
        reply: dict[str, Any] = {"result": {}}
        if method == "initialize":
            if behaviour == "dies":
                print("no licence was found", file=sys.stderr, flush=True)
                sys.exit(4)
            if behaviour == "tells":
                sys.exit(f"I do not like this token: it is {os.environ['SHOP_TOKEN']}")
            if behaviour == "silent":
                continue
            if behaviour == "garbage":
                print("Welcome!\n{not json\n\n[1]\nnull", flush=True)
            info = {"name": "by hand", "version": "1"}
            reply["result"] = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        elif method == "tools/list":
            tools = {"mortal": MORTAL, "refuses": REFUSING}.get(behaviour, LIES)
            if behaviour == "many":
                tools = [{"name": f"t{i}", "inputSchema": OBJECT} for i in range(5000)]
            if behaviour == "list is none":
                tools = "none"
            if behaviour == "stuck":
                continue
            reply["result"] = {"tools": tools}
            if behaviour == "pages":
                page = int(message.get("params", {}).get("cursor", 0))
                one = {"name": f"page{page}", "inputSchema": OBJECT}
                reply["result"] = {"tools": [one], "nextCursor": str(page + 1)}
        elif method == "tools/call":
            said = answer(behaviour, message["params"]["name"])
            reply["result"] = {"content": [{"type": "text", "text": said}]}
            if behaviour == "bad answer":
                reply["result"] = {"content": "fine"}
        else:
            reply = {"error": {"code": -32601, "message": "no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": number, **reply}), flush=True)


if __name__ == "__main__":
    by_hand(sys.argv[1])
