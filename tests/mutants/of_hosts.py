"""Mistakes of a host and of the HTTP API: who may, how much, and what an end leaves."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_HOST = "tests/server/test_host.py"
_BAD = "tests/server/test_bad_requests.py"
_WIRE = "tests/server/test_wire.py"
_AUTH = "tests/server/test_auth.py"

MUTANTS = [
    mutant(
        "host-forgets-an-agent-that-closes",
        "a second agent of the context starts while the first one still shuts down",
        "looopy.server.host:AgentHost._pin",
        "await asyncio.wait([kept.closing])",
        "self._kept.pop(key, None)",
        f"{_HOST}::test_many_requests_at_once_meet_one_live_agent_a_context",
    ),
    mutant(
        "host-starts-an-agent-after-its-end",
        "a request that waited starts an agent again that nobody will shut down",
        "looopy.server.host:AgentHost._opened",
        "if kept.closing is not None:",
        "if False:",
        f"{_HOST}::test_an_agent_that_does_not_start_does_not_hold_up_the_end",
    ),
    mutant(
        "host-judges-the-owner-once",
        "of two actors who make one context at once, the second gets a turn in it",
        "looopy.agent.claim:Claiming._claim",
        "self._refuse_strangers()",
        "pass",
        f"{_HOST}::test_the_first_turn_of_another_process_makes_the_owner",
    ),
    mutant(
        "host-cuts-a-turn-as-cancelled",
        "a turn that the end of a process cuts can never be continued",
        "looopy.agent.hosted:HostPort.break_off",
        "turns.leave()",
        "pass",
        f"{_HOST}::test_a_turn_that_is_cut_is_interrupted_and_can_be_continued",
    ),
    mutant(
        "host-evicts-an-agent-at-work",
        "a place is taken from an agent that runs a turn",
        "looopy.server.host:_Kept.idle",
        "return unused and self.agent is not None and not port_of(self.agent).at_work",
        "return unused",
        f"{_HOST}::test_the_least_recently_used_idle_agent_gives_its_place",
    ),
    mutant(
        "http-measures-a-body-at-its-end",
        "a client without a Content-Length fills the memory",
        "looopy.server.gate.body:_read",
        "if size > limits.body_bytes:",
        "if False:",
        f"{_BAD}::test_a_body_is_measured_while_it_streams_in",
    ),
    mutant(
        "http-makes-values-before-it-counts-them",
        "a body of a megabyte stops the event loop for two seconds",
        "looopy.server.gate.body:_object_in",
        "_check_count(text, limits)",
        "pass",
        f"{_BAD}::test_a_body_that_is_no_use_is_refused",
    ),
    mutant(
        "http-serves-any-host",
        "a name that resolves to 127.0.0.1 reaches a server on loopback",
        "looopy.server.gate.guard:Guard._problem",
        "if host is None or not self._knows(host):",
        "if host is None:",
        f"{_BAD}::test_hosts_and_origins_have_to_be_known",
    ),
    mutant(
        "http-ignores-last-event-id",
        "a client that comes again misses what happened in the meantime",
        "looopy.server.sse:place_of",
        'request.headers.get("last-event-id") or request.query_params.get("after")',
        'request.query_params.get("after")',
        f"{_WIRE}::test_a_client_that_reconnects_resumes_after_its_last_event",
    ),
    mutant(
        "jwt-takes-any-audience",
        "a token for another service of the same provider opens this one",
        "looopy.server.gate.jwt:JwtBearer._claims",
        "and self._audience in wanted",
        "and bool(wanted)",
        f"{_AUTH}::test_a_token_that_does_not_count_is_refused",
    ),
    mutant(
        "budget-of-another-tenant",
        "a person sees what somebody of the same name has used in another tenant",
        "looopy.server.page.budgets:owner_budget",
        "host.stores_for(auth), auth.actor_id",
        "host.stores, auth.actor_id",
        "tests/server/test_budgets.py::test_an_owner_sees_used_reserved_and_allowed_amounts",
    ),
    mutant(
        "release-while-it-runs",
        "what a call that runs has reserved is given to others",
        "looopy.stores.accounts:release_call",
        "if not call.is_stuck:",
        "if call.status == 'nothing':",
        "tests/cli/test_budget.py::test_a_call_of_a_killed_process_is_shown_and_released",
    ),
    mutant(
        "host-erases-others",
        "an erasure takes the context that somebody else made between its check and its end",
        "looopy.server.host:AgentHost.erase",
        "erased = await stores.contexts.erase(context_id, owner=actor_id, force=force)",
        "erased = await stores.contexts.erase(context_id, force=force)",
        "tests/server/test_host.py::test_an_erasure_spares_a_context_created_meanwhile",
    ),
    mutant(
        "a-left-out-protocol-is-served",
        "a protocol that the operator switched off takes requests",
        "looopy.cli.serve:_routes_of",
        "for name in protocols if named is None or name in named",
        "for name in protocols",
        "tests/cli/test_serve.py::test_a_protocol_that_is_left_out_is_not_there",
    ),
    mutant(
        "the-end-of-a-server-cuts-streams",
        "who reads a turn that ends as its server stops never gets its last events",
        "looopy.cli.serve:_run",
        "while app.state.context.open_streams:",
        "while False:",
        "tests/cli/test_serve.py::test_a_stream_has_the_end_of_its_turn_before_the_process_ends",
    ),
]
