"""All mutants."""

from __future__ import annotations

from tests.mutants import (
    of_agents,
    of_calls,
    of_editors,
    of_faces,
    of_hosts,
    of_people,
    of_plain,
    of_processes,
    of_replays,
    of_rims,
    of_stores,
    of_tools,
    of_turns,
    of_web,
    of_wires,
)

MUTANTS = [
    *of_stores.MUTANTS,
    *of_plain.MUTANTS,
    *of_turns.MUTANTS,
    *of_tools.MUTANTS,
    *of_people.MUTANTS,
    *of_processes.MUTANTS,
    *of_wires.MUTANTS,
    *of_web.MUTANTS,
    *of_agents.MUTANTS,
    *of_calls.MUTANTS,
    *of_faces.MUTANTS,
    *of_hosts.MUTANTS,
    *of_rims.MUTANTS,
    *of_editors.MUTANTS,
    *of_replays.MUTANTS,
]
