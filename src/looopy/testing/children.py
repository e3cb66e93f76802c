"""
Child processes to be killed: forked, so that a life costs no interpreter start.

The parent imports the modules that its children need, before it forks. It has no connection open
then, and no thread.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

_PATIENCE_S = 60.0
_POLL_S = 0.0005
_LONGEST_STEP_S = 0.25


class Patience:
    """
    The rest of a time in which something has to happen; a caller looks at it again and again.

    A virtual machine may stand still for half a minute, and everything that should have happened
    stands still with it. So the time between two looks counts for a quarter of a second at most.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._looked = time.monotonic()

    def is_over(self) -> bool:
        """Look; true if no time is left."""
        now = time.monotonic()
        self._left -= min(now - self._looked, _LONGEST_STEP_S)
        self._looked = now
        return self._left <= 0


def fork(body: Callable[[], None], log: Path) -> int:
    """Run *body* in a child process and return its id; its output goes to the file *log*."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        body()
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(
    pid: int, *, kill_after_s: float | None = None, once: Callable[[], bool] | None = None
) -> int:
    """
    The exit status of a child, killed after a while if it has not ended.

    Args:
        kill_after_s: `None`: it has to end by itself.
        once: That time begins when this first returns true. `None`: it begins now.

    Raises:
        TimeoutError: It hung, and was killed.
    """
    longest = max(_PATIENCE_S, 2 * (kill_after_s or 0))
    patience = Patience(longest)
    until_killed: Patience | None = None
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if until_killed is None and kill_after_s is not None and (once is None or once()):
            until_killed = Patience(kill_after_s)
        hangs = patience.is_over()
        if hangs or (until_killed is not None and until_killed.is_over()):
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if hangs:
                raise TimeoutError(f"a child did not end within {longest:.0f} s")
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)


def run(body: Callable[[], None], log: Path) -> None:
    """
    Run *body* in a child process, to its end.

    Raises:
        RuntimeError: It failed; the message is its output.
    """
    if wait(fork(body, log)) != 0:
        raise RuntimeError(log.read_text())
