"""
A chat without `async`: the same agent with blocking methods, for scripts and notebooks.

Type a message; an empty line or the end of the input ends the chat. Run the program again with the
same file: the chat still knows the conversation. Ctrl-C during an answer cancels the turn.
"""

import os
import sys

from looopy import MessageUpdate
from looopy.sync import Agent
from looopy.testing import ScriptedProvider, text

path = sys.argv[1] if len(sys.argv) > 1 else "chat.db"
model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
    lambda request: text(f"You said {sum(m.role == 'user' for m in request.messages)} things."),
    chunk_chars=5,
)

with Agent("chat", llm_provider=model, stores=f"sqlite:///{path}") as agent:
    print(f"{agent.state.turn_count} turns so far")
    try:
        while said := input("> "):
            for event in agent.stream_turn(said):
                if isinstance(event, MessageUpdate):
                    print(event.delta, end="", flush=True)
            print()
    except EOFError:
        print()
