"""
Standard input and output for a protocol alone.

`looopy acp` and `looopy mcp` speak over them. An application prints, its libraries log, and its
tools start programs that write; one such line would break the protocol. So the protocol gets copies
of both streams. In their place the process has an empty input, and the error stream as its output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_IN, _OUT, _ERR = 0, 1, 2


@contextmanager
def protocol_streams() -> Iterator[tuple[int, int]]:
    """
    Two file descriptors for a protocol, to read from and to write to.

    Until the block ends, standard output is the error stream, also for programs that it starts.
    """
    sys.stdout.flush()
    reader, writer = os.dup(_IN), os.dup(_OUT)  # which programs that it starts do not inherit
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _IN)
    os.close(empty)
    os.dup2(_ERR, _OUT)
    try:
        yield reader, writer
    finally:
        sys.stdout.flush()
        os.dup2(reader, _IN)
        os.dup2(writer, _OUT)
        os.close(reader)
        os.close(writer)
