"""
The process that bears programs: it has loaded what others wrote, and forks; see `tests.forked`.

Nothing of looopy is loaded here, so that each program still loads it for itself. It is run by its
path, not imported, and so leaves no module of the tests in its children either.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import os
import pickle
import runpy
import signal
import socket
import sys
import tempfile
import termios
import threading
import types
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_HEAD = 4  # bytes that say how many follow


class Program(NamedTuple):
    """What a child becomes."""

    options: tuple[str, ...]  # of Python: -W's alone
    args: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    new_session: bool
    own_terminal: bool


def send(line: socket.socket, program: tuple[Any, ...], streams: tuple[int, int, int]) -> int:
    """Ask for a child that is *program*; its process id, or 0 if it could not begin."""
    data = pickle.dumps(tuple(program))
    socket.send_fds(line, [len(data).to_bytes(_HEAD, "big")], streams)
    line.sendall(data)
    return int.from_bytes(_exactly(line, _HEAD), "big")


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise EOFError("the nursery has ended")
        data += part
    return data


def _next(line: socket.socket) -> Program:
    """Bear a child for each request; returns in each child, and ends with the one who asks."""
    while True:
        head, streams, _, _ = socket.recv_fds(line, _HEAD, 3)
        if not head:
            os._exit(0)
        head += _exactly(line, _HEAD - len(head))
        program = Program(*pickle.loads(_exactly(line, int.from_bytes(head, "big"))))  # noqa: S301
        read, write = os.pipe()
        between = os.fork()  # when it has ended, its child goes to the one who asks
        if between == 0:
            os.close(read)
            if os.fork():
                os._exit(0)
            line.close()
            try:
                _settle(program, streams)
            except OSError:  # a folder that is not there: a process that is started says it
                os._exit(1)
            os.write(write, os.getpid().to_bytes(_HEAD, "big"))
            os.close(write)
            return program
        os.close(write)
        for stream in streams:
            os.close(stream)
        os.waitpid(between, 0)
        line.sendall(os.read(read, _HEAD) or bytes(_HEAD))
        os.close(read)


def _settle(program: Program, streams: list[int]) -> None:
    """Be what a new process is before Python starts in it."""
    if program.new_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if program.own_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(program.cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _begin(program: Program) -> None:
    """Be what Python is when it has started."""
    os.environ.clear()
    os.environ.update(program.env)
    tempfile.tempdir = None
    sys.dont_write_bytecode = bool(program.env.get("PYTHONDONTWRITEBYTECODE"))
    unbuffered = bool(program.env.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = open(number, "rb" if not number else "wb", 0, closefd=False)  # noqa: SIM115
        new = _text(raw, old, unbuffered)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    wanted = [*program.env.get("PYTHONWARNINGS", "").split(","), *program.options]
    if wanted := [one for one in wanted if one]:
        sys.warnoptions[:] = wanted
    else:
        sys.warnoptions.clear()
        ours = ("error", None, Warning, None, 0)  # see `-W error` in `tests.forked`
        warnings.filters[:] = [one for one in warnings.filters if one != ours]
        warnings._filters_mutated()


def _text(raw: Any, old: Any, unbuffered: bool) -> Any:
    buffer = raw if unbuffered and raw.writable() else (
        io.BufferedWriter(raw) if raw.writable() else io.BufferedReader(raw)
    )
    raw.name = old.name
    return io.TextIOWrapper(
        buffer,
        encoding=old.encoding,
        errors=old.errors,
        newline="\n",
        line_buffering=raw.writable() and (raw.isatty() or old.name == "<stderr>"),
        write_through=unbuffered and raw.writable(),
    )


def _run(args: tuple[str, ...]) -> None:
    """What `python ARGS` runs."""
    importlib.invalidate_caches()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if args[0] == "-m":
        sys.argv = ["-m", *args[2:]]
        sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(args[1])
    elif args[0] == "-c":
        sys.argv = ["-c", *args[2:]]
        sys.path.insert(0, "")
        exec(compile(args[1], "<string>", "exec"), main.__dict__)  # noqa: S102
    else:
        sys.argv = [*args]
        path = Path(args[0])
        sys.path.insert(0, str(path.resolve().parent))
        main.__dict__["__file__"] = args[0]
        exec(compile(path.read_bytes(), args[0], "exec"), main.__dict__)  # noqa: S102


def _run_to_its_end(args: tuple[str, ...]) -> int:
    """
    Run it, and end as Python does; its exit status.

    What Python does at its end to each object of each module takes longer than most programs: all
    that was loaded before the fork would be copied to be thrown away. What the program left behind
    in cycles is collected, so that what it forgot to close is still said.
    """
    status = 0
    try:
        _run(args)
    except SystemExit as end:
        if isinstance(end.code, int):
            status = end.code
        elif end.code is not None:
            print(end.code, file=sys.stderr)  # noqa: T201
            status = 1
    except KeyboardInterrupt as error:
        _show(error)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:  # noqa: BLE001 - the last one to see it
        _show(error)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # nobody reads any more
        status = status or 120
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    return status


def _show(error: BaseException) -> None:
    """A traceback begins with the program's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who asked
    sys.path.pop(0)  # the folder of this file
    for name in sys.argv[2:]:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    program = _next(socket.socket(fileno=int(sys.argv[1])))
    _begin(program)
    os._exit(_run_to_its_end(program.args) & 0xFF)
