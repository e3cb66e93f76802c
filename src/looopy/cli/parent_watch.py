"""
The end of a chat whose parent is gone.

`uv run looopy chat` has uv between the shell and itself. If uv is killed, the shell takes the
terminal back. The chat would still run its turn, print into the shell's next program, and keep the
conversation from the next chat.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Final

_LOOK_S: Final = 0.1


def end_with_parent() -> None:
    """
    End this process as soon as its parent is gone, as it ends when its terminal hangs up.

    On Windows a process keeps the number of its parent, so this has no effect there.
    """
    if os.name != "posix":
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os.kill(os.getpid(), signal.SIGHUP)

    threading.Thread(target=watch, name="looopy-parent", daemon=True).start()
