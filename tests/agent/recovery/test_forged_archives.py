"""An archive that a user has changed, hashes included, grants its importer nothing."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from datetime import timedelta

import pytest

from looopy import Agent, Approve, AuthContext, ToolContext, open_stores, tool
from looopy.auth import AuthRequest, encrypt_credential
from looopy.errors import ArchiveRefused, ConfigurationError
from looopy.loop.approval import bound_to
from looopy.stores import export_contexts, import_contexts
from looopy.stores.archive.writing import Signature
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import Ask, NeedsInput, client_tool
from looopy.types.event import utc_now
from looopy.types.state import AgentStatus, Outcome

MALLORY = AuthContext("mallory")
YES = True
KEY, OTHER = "k" * 32, "o" * 32


@pytest.fixture
async def stores():
    """Stores in memory, open."""
    async with open_stores("memory:") as opened:
        yield opened


class Vault:
    """Tools that need a person, and notes of what they did."""

    def __init__(self):
        self.did = []

        @tool(effects="external", needs_approval=True)
        async def pay(cents: int) -> str:
            """Pay."""
            self.did.append(cents)
            return f"paid {cents}"

        @tool
        async def wipe(context: ToolContext) -> str:
            """Ask in its own words, and remember that it did."""
            if context.state == "allowed" or context.answers.get("sure"):
                self.did.append("wiped")
                return "wiped"
            raise NeedsInput([Ask("sure", prompt="Sure?")], "asked")

        @tool
        async def push(context: ToolContext) -> str:
            """Use a credential."""
            await context.ask("token", auth=AuthRequest(type="pat"))
            self.did.append("pushed")
            return "pushed"

        @tool(effects="external", on_resume="ask")
        async def send() -> str:
            """Send."""
            self.did.append("sent")
            return "sent"

        nothing = {"type": "object", "properties": {}}
        self.pay, self.tools = pay, [pay, wipe, push, send, client_tool("snap", "Snap.", nothing)]


def agent(context_id, stores, vault, *script):
    """An agent of that script."""
    provider = ScriptedProvider([*script, *[text("done")] * 3])
    return Agent(context_id, llm_provider=provider, tools=vault.tools, stores=stores, auth_key=KEY)


async def archive(stores, **options):
    """The members of an archive of the context, by name."""
    pieces = [piece async for piece in export_contexts(stores, "c", **options)]
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as made:
        return {one.filename: made.read(one.filename) for one in made.infolist()}


def packed(members, *, honest=False):
    """The archive of *members*; its hashes are right, unless they are the *honest* ones."""
    if not honest:
        manifest = json.loads(members["manifest.json"])
        for name in manifest["members"]:
            digest = hashlib.sha256(members[name]).hexdigest()
            manifest["members"][name] = {"size": len(members[name]), "sha256": digest}
        members["manifest.json"] = json.dumps(manifest).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out:
        for name, raw in members.items():
            out.writestr(name, raw)
    made.seek(0)
    return made


def changed(members, change):
    """*members* with another context, which *change* has made."""
    name = "contexts/1/context.json"
    context = json.loads(members[name])
    change(context)
    return {**members, name: json.dumps(context).encode()}


def answered(value):
    """Move the request to those that were answered."""

    def change(context):
        state = context["state"]
        state["answered"] = [[one, value] for one in state.pop("pending")]

    return change


def with_other_arguments(context):
    """An approval of arguments that nobody saw, bound to them."""
    answered({"approved": True, "args": {"cents": 9}})(context)
    for one in context["state"]["held"]:
        one["bound"] = bound_to(Vault().pay, {"cents": 9})
        one["args"] = {"cents": 9}


def approved_alone(context):
    """An approval that is bound to nothing."""
    answered(YES)(context)
    context["state"]["held"][0]["bound"] = None


def with_own_state(context):
    """The state that the tool would have kept for itself."""
    answered(YES)(context)
    context["state"]["held"][0] |= {"state": "allowed"}


def never_asked(context):
    """As if nothing waited."""
    context["state"].pop("pending")
    context["state"].pop("held")


FORGERIES = {
    "pay": [answered(YES), answered({"approved": True}), with_other_arguments, approved_alone],
    "wipe": [answered(YES), answered("yes"), with_own_state],
    "push": [answered("a.b.c"), answered("eyJlbmMiOiJ4In0..YQ.YQ.YQ")],
    "snap": [answered({"content": "a face"})],
}
CASES = [(name, change) for name, changes in FORGERIES.items() for change in changes]


@pytest.mark.parametrize(("name", "change"), CASES)
async def test_a_decision_of_an_archive_lets_no_call_run(stores, name, change):
    """Of whatever kind: the call asks again, with the arguments that it would have."""
    vault, arguments = Vault(), {"cents": 5} if name == "pay" else {}
    async with agent("c", stores, vault, tool_call(name, **arguments)) as first:
        asked = await first.execute_turn("go", MALLORY)
    forged = packed(changed(await archive(stores), change))
    report = await import_contexts(stores, forged, new_ids={"c": "new"}, owner="mallory")
    assert report.signature is Signature.NONE
    async with agent("new", stores, vault) as there:
        assert there.state.pending == ()
        assert there.state.interrupted_turn == 1
        result = await there.execute_turn(None, MALLORY)
        [request], [before] = result.pending, asked.pending
        assert (vault.did, request.kind, request.args) == ([], before.kind, before.args)
        value = {"auth": encrypt_credential("t", request.auth)} if request.auth else {}
        answer = {"client_tool": {"x": 1}, "approval": True}.get(request.kind.value, True)
        inputs = {request.request_id: value.get("auth", answer)}
        result = await there.execute_turn(None, MALLORY, inputs=inputs)
        assert result.outcome is Outcome.COMPLETED
    did = {"pay": [5], "wipe": ["wiped"], "push": ["pushed"], "snap": []}
    assert vault.did == did[name]


async def test_a_call_without_an_approval_requests_one_after_an_import(stores):
    """The tool needs approval today, whatever the archive has left out."""
    vault = Vault()
    async with agent("c", stores, vault, tool_call("pay", cents=5)) as first:
        await first.execute_turn("go", MALLORY)

    def left_open(context):
        never_asked(context)
        context["state"]["resumable"] = 1

    forged = packed(changed(await archive(stores), left_open))
    await import_contexts(stores, forged, new_ids={"c": "new"}, owner="mallory")
    async with agent("new", stores, vault) as there:
        assert (await there.execute_turn(None, MALLORY)).outcome is Outcome.INPUT_REQUIRED
    assert vault.did == []


async def test_a_second_person_is_shown_the_call_that_would_run(stores):
    """A request with other arguments than its call's is not what anybody is asked."""
    vault = Vault()
    async with agent("c", stores, vault, tool_call("pay", cents=900)) as first:
        await first.execute_turn("go", MALLORY)

    def harmless(context):
        context["state"]["pending"][0] |= {"args": {"cents": 1}, "prompt": "A coffee?"}

    forged = packed(changed(await archive(stores), harmless))
    await import_contexts(stores, forged, new_ids={"c": "new"}, owner="mallory")
    async with agent("new", stores, vault) as there:
        [request] = (await there.execute_turn(None, MALLORY)).pending
    assert (request.args, "coffee" in request.prompt) == ({"cents": 900}, False)


async def test_each_copy_of_an_answered_call_asks(stores):
    """An approval counts once, however often its archive is imported, and whoever signed it."""
    vault = Vault()
    async with agent("c", stores, vault, tool_call("pay", cents=5)) as first:
        [request] = (await first.execute_turn("go", MALLORY)).pending
        await first.decide(request.request_id, Approve(), AuthContext("boss"))
    members = await archive(stores, auth_key=KEY)
    for name in ("one", "two"):
        made, options = packed(members, honest=True), {"keep_owners": True, "auth_key": KEY}
        report = await import_contexts(stores, made, new_ids={"c": name}, **options)
        assert report.signature is Signature.VALID
        async with agent(name, stores, vault) as copy:
            result = await copy.execute_turn(None, MALLORY)
            assert result.outcome is Outcome.INPUT_REQUIRED
    async with agent("c", stores, vault) as original:
        assert (await original.execute_turn(None, MALLORY)).outcome is Outcome.COMPLETED
    assert vault.did == [5]


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("usage", {"input": -5}, "/state/usage/input"),
        ("charged", {"total_tokens": -5}, "/state/charged/total_tokens"),
        ("run_us", -1, "/state/run_us"),
        ("held", [{"tool_call_id": "x", "origin": 9, "asked_in": 0}], "/state/held/0/origin"),
        ("held", [{"tool_call_id": "x", "origin": 1, "asked_in": -1}], "/state/held/0/asked_in"),
        ("held", [{"tool_call_id": "x", "origin": True, "asked_in": 1}], "/state/held/0/origin"),
        ("needs_auth", "yes", "/state"),
        ("run_us", "none", "/state"),
        ("admin", True, "/state"),
    ],
)
async def test_a_state_that_looopy_does_not_write_is_refused(stores, field, value, path):
    """With the place."""
    async with agent("c", stores, Vault(), text("hi")) as first:
        await first.execute_turn("go", MALLORY)
    members = await archive(stores)
    whole = {"keys": {}, "state": None, "sealed": {}, "bound": None, "died": False}
    value = [{**one, **whole} for one in value] if field == "held" else value
    forged = packed(changed(members, lambda context: context["state"].update({field: value})))
    with pytest.raises(ArchiveRefused) as refused:
        await import_contexts(stores, forged, new_ids=True, owner="mallory")
    assert refused.value.path == path


async def test_a_context_of_the_future_is_one_of_now(stores):
    """Or no rule about age would ever erase it."""
    async with agent("c", stores, Vault(), text("hi")) as first:
        await first.execute_turn("go", MALLORY)

    def later(context):
        for name in ("created_at", "last_activity"):
            context[name] = (utc_now() + timedelta(days=9999)).isoformat()

    forged = packed(changed(await archive(stores), later))
    await import_contexts(stores, forged, new_ids={"c": "new"}, owner="mallory")
    found = await stores.state.load("new")
    assert found.created_at <= utc_now()
    assert found.last_activity <= utc_now()


async def test_a_running_turn_of_an_archive_has_no_owner_and_no_decision(stores):
    """It counts as dead, and a call that it would have run asks."""
    vault = Vault()
    async with agent("c", stores, vault, tool_call("pay", cents=5)) as first:
        await first.execute_turn("go", MALLORY)
    members = await archive(stores)

    def running(context):
        answered(YES)(context)
        context["open_turn"] = 1
        context["last_seq"] -= 2

    turns = json.loads(members["contexts/1/turns.jsonl"])
    turns |= dict.fromkeys(("outcome", "stop_reason", "end_seq", "ended_at"))
    lines = members["contexts/1/events.jsonl"].splitlines(keepends=True)[:-2]
    manifest = json.loads(members["manifest.json"])
    manifest["contexts"][0]["events"] -= 2
    members |= {
        "contexts/1/turns.jsonl": json.dumps(turns).encode() + b"\n",
        "contexts/1/events.jsonl": b"".join(lines),
        "manifest.json": json.dumps(manifest).encode(),
    }
    forged = packed(changed(members, running))
    await import_contexts(stores, forged, new_ids={"c": "new"}, owner="mallory")
    async with agent("new", stores, vault) as there:
        assert (there.state.status, there.state.interrupted_turn) == (AgentStatus.READY, 1)
        assert (await there.execute_turn(None, MALLORY)).outcome is Outcome.INPUT_REQUIRED
    assert vault.did == []


# --- signatures --------------------------------------------------------------------------------


async def test_a_signature_marks_an_archive_of_the_application(stores):
    """With its key alone, and of these very bytes."""
    async with agent("c", stores, Vault(), text("hi")) as first:
        await first.execute_turn("go", MALLORY)
    signed, plain = await archive(stores, auth_key=KEY), await archive(stores)
    assert {name: raw for name, raw in signed.items() if name in plain} == plain
    altered = changed(signed, lambda context: context["tags"].append("vip"))
    said = json.loads(signed["signature.json"])
    other = {**signed, "signature.json": json.dumps({**said, "algorithm": "none"}).encode()}
    cases = [
        (packed(signed, honest=True), KEY, Signature.VALID),
        (packed(signed, honest=True), OTHER, Signature.INVALID),
        (packed(signed, honest=True), None, Signature.UNCHECKED),
        (packed(plain, honest=True), KEY, Signature.NONE),
        (packed(altered), KEY, Signature.INVALID),
        (packed(other, honest=True), KEY, Signature.INVALID),
    ]
    for made, key, signature in cases:
        report = await import_contexts(stores, made, new_ids=True, owner="mallory", auth_key=key)
        assert report.signature is signature
        made.seek(0)
        options = {"new_ids": True, "owner": "mallory", "auth_key": key, "signed_only": True}
        if signature is Signature.VALID:
            await import_contexts(stores, made, **options)
        elif key is not None:
            with pytest.raises(ArchiveRefused, match=f"its signature is {signature}") as refused:
                await import_contexts(stores, made, **options)
            assert refused.value.member == "signature.json"


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"mac": 1}', b'{"algorithm": "x"}', b"x" * 5000])
async def test_a_signature_that_is_none_is_refused(stores, raw):
    """Named as its member, whether a key is given or not."""
    async with agent("c", stores, Vault(), text("hi")) as first:
        await first.execute_turn("go", MALLORY)
    members = {**await archive(stores), "signature.json": raw}
    for key in (KEY, None):
        with pytest.raises(ArchiveRefused) as refused:
            await import_contexts(
                stores, packed(members, honest=True), new_ids=True, owner="mallory", auth_key=key
            )
        assert refused.value.member == "signature.json"


async def test_a_key_that_is_short_or_missing_is_named(stores):
    """Before any byte is written or read."""
    async with agent("c", stores, Vault(), text("hi")) as first:
        await first.execute_turn("go", MALLORY)
    with pytest.raises(ConfigurationError, match="auth_key takes a secret"):
        await archive(stores, auth_key="short")
    members = await archive(stores, auth_key=KEY)
    for options in ({"auth_key": "short"}, {"signed_only": True}):
        with pytest.raises(ConfigurationError, match="auth_key"):
            await import_contexts(stores, packed(members, honest=True), new_ids=True, **options)
