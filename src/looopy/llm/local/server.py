"""
The child process: serves one model on loopback until its parent is gone.

Run as `python -m looopy.llm.local.server`. Its first line of input holds its settings, so that the
key is in no command line and no environment; its first line of output holds its address. Then it
only waits for the end of its input, which comes when the parent closes it or dies in any way.

It is a process of its own, because it runs a large native library: a crash, a processor that lacks
an instruction or a lack of memory ends this process and not the user's.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1  # prctl(2)


def _die_with_parent() -> None:
    """
    Ask Linux for a signal when the parent dies.

    The end of input shows that too, on every system, unless a forked copy of the parent still holds
    the other end of the pipe open.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Serve what the first line of input asks for, until the input ends."""
    _die_with_parent()
    # A Ctrl-C in the terminal is for the parent, which decides what becomes of us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = json.loads(sys.stdin.buffer.readline())

    xllamacpp: Any = importlib.import_module("xllamacpp")  # it ships no types

    params = xllamacpp.CommonParams()
    params.model.path = config["path"]
    params.model_alias = {config["name"]}
    params.n_ctx = config["n_ctx"]
    params.n_parallel = 1
    params.cpuparams.n_threads = config["threads"]
    params.cpuparams_batch.n_threads = config["prompt_threads"]
    # Threads that wait for each other give up the processor instead of spinning: beside two other
    # busy processes on two cores an answer came several times as fast, and on idle ones no slower.
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [config["key"]]
    params.use_jinja = True
    params.ui = False
    params.offline = True
    params.warmup = True
    params.verbosity = 0
    server = xllamacpp.Server(params)
    # The library may write to standard output too, so the line carries a mark.
    sys.stdout.write(f"\nready {json.dumps({'address': server.listening_address})}\n")
    sys.stdout.flush()
    while sys.stdin.buffer.read(4096):
        pass
    # Not by returning: a server in the middle of an answer would finish it first.
    os._exit(0)


if __name__ == "__main__":
    main()
