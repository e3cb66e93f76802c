"""
The name of this process, by which operators match a turn with the log and with traces.

A host's name would show users of a conversation the machines that serve them, and a process id is
used again. So the name is the process id, a hyphen and eight random digits.
"""

from __future__ import annotations

import os
from functools import cache


def process_name() -> str:
    """
    This process's name, such as `4182-9f3c21ab`; a forked process has another.

    Each turn keeps the name of the process that ran it. Lines of the log (`JsonLines`) and spans of
    `looopy serve` (`service.instance.id`) have the same.
    """
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    return f"{pid}-{os.urandom(4).hex()}"
