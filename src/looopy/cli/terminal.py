"""
Input and output of the command line, and the one filter for text from elsewhere.

Text of models, tools and stored conversations may hold sequences that a terminal obeys: clear the
screen, write the clipboard, show one link and open another, turn text around. `safe_text` replaces
each such character by a visible one. It examines one character at a time and keeps no state, so a
sequence in pieces is as harmless as a whole one.

A person may paste several lines, or begin a new one with Alt-Enter or a backslash: they are one
message. The terminal marks a paste (xterm's bracketed paste) as long as the chat runs, because
between two prompts it would come as so many lines.

All output goes through `Terminal`, which applies the filter, knows if the cursor is at the
beginning of a line, and uses colours only on a terminal. While nothing comes, it shows that the
program works: one line that the next output replaces, only on a terminal.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TextIO

_MORE: Final = ". "
_PASTE_ON: Final = "\x1b[?2004h"
_PASTE_OFF: Final = "\x1b[?2004l"
_PASTE_BEGINS: Final = "\x1b[200~"
_PASTE_ENDS: Final = "\x1b[201~"
_CTRL_D: Final = b"\x04"
_marks_pastes = False
_later = bytearray()  # keys of the terminal that were read with a line before them
_UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"
_CONTROL_PICTURES: Final = 0x2400
_REPEATS: Final = 3
_REPEAT_AFTER_S: Final = 0.15
_QUIET_S: Final = 1.0  # without output for so long, the program shows that it works
_BIDI: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))


def _table() -> dict[int, str]:
    table = {code: chr(_CONTROL_PICTURES + code) for code in range(0x20) if chr(code) not in "\n\t"}
    table[0x7F] = "\N{SYMBOL FOR DELETE}"
    hidden = (*range(0x80, 0xA0), *_BIDI, 0x2028, 0x2029, *range(0xD800, 0xE000))
    table.update(dict.fromkeys(hidden, _UNPRINTABLE))
    return table


_TABLE: Final[Mapping[int, str]] = _table()


def safe_text(text: str) -> str:
    """
    *text* as any terminal may be given it: one visible character for each that it could obey.

    Replaced are the C0 controls but newline and tab, DEL, C1, the marks that change the direction
    of writing, line and paragraph separators, and surrogates.
    """
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_TABLE)


def one_line(text: str, limit: int) -> str:
    """*text*, safe, as one line of at most *limit* characters; what is left out is marked."""
    # Only the beginning is scanned: a result may be a megabyte.
    line = " ".join(safe_text(text[: limit * 4]).split())
    if len(line) <= limit and len(text) <= limit * 4:
        return line
    return line[: limit - 3].rstrip() + "..."


class NewsCame(Exception):
    """Something is to be shown before a person is asked; nothing was typed yet."""


class Terminal:
    """
    The streams of one run.

    Args:
        quiet_out: Standard output is for the answers, or for JSON, alone: everything else goes to
            standard error.
        out: Standard output by default.
        err: Standard error by default.
        env: For `NO_COLOR` and `TERM`.
    """

    def __init__(
        self,
        *,
        quiet_out: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        # A stream that was closed before the program began is None: it has no reader.
        self._out = out or sys.stdout or io.StringIO()
        self._err = err or sys.stderr or io.StringIO()
        self._aside = self._err if quiet_out else self._out
        smart = {s for s in (self._out, self._err) if env.get("TERM") != "dumb" and s.isatty()}
        self._coloured = set() if env.get("NO_COLOR") else smart
        self._in_line = False
        self._can_redraw = self._aside in smart
        self._lock = threading.RLock()
        self._shown_at = time.monotonic()
        self._working = ""  # the line that reports it, while it is on the screen
        self._kept: list[str] = []  # typed before a question that it must not answer
        self._news: int | None = None

    @property
    def has_person(self) -> bool:
        """True if a person can answer questions."""
        return sys.stdin is not None and sys.stdin.isatty()

    def write(self, text: str, *, dim: bool = False) -> None:
        """Print a piece of text at once, wherever the cursor is."""
        if text:
            self._put(self._out, text, "2" if dim else "")
            self._in_line = not text.endswith("\n")

    def fresh_line(self) -> None:
        """Begin a new line, unless the cursor is at the beginning of one."""
        if self._in_line:
            self._in_line = False
            self._put(self._out, "\n", "")

    def line(self, text: str = "") -> None:
        """Print *text* as a line of its own."""
        self.fresh_line()
        self._put(self._out, f"{text}\n", "")

    def notice(self, text: str) -> None:
        """Show a line about the program, not about the conversation."""
        self.fresh_line()
        self._put(self._aside, f"{text}\n", "2")

    def error(self, text: str) -> None:
        """Show in one line what went wrong."""
        self.fresh_line()
        self._put(self._err, f"error: {one_line(text, 600)}\n", "31")

    def raw_line(self, text: str) -> None:
        """Print a line of JSON, which holds no character that needs a replacement."""
        with self._lock:
            self._erase()
            self._out.write(f"{text}\n")
            self._out.flush()

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """
        Show *what*, and for how long, whenever nothing else was shown for a second.

        Only on a terminal, and only where a line begins. The next output takes its place.
        """
        if not self._can_redraw:
            yield
            return
        over = threading.Event()

        def tick() -> None:
            while not over.wait(_QUIET_S):
                with self._lock:
                    quiet_s = int(time.monotonic() - self._shown_at)
                    if quiet_s and not self._in_line and not over.is_set():
                        self._draw(f"[{what} ... {quiet_s} s]")

        with self._lock:
            self._shown_at = time.monotonic()
        thread = threading.Thread(target=tick, name="looopy-working", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with self._lock:
                self._erase()

    @contextmanager
    def interrupted_by(self, news: int) -> Iterator[None]:
        """
        Let an empty line end with `NewsCame` once *news* can be read.

        Args:
            news: A file descriptor. It has no effect where no person edits lines.
        """
        self._news = news if os.name == "posix" else None
        try:
            yield
        finally:
            self._news = None

    def read_line(self, prompt: str, *, anew: bool = False) -> str | None:
        """
        Read a line from standard input, editable where it is a terminal.

        Args:
            anew: Keep the text that was typed before *prompt* for the next prompt, if a person
                types: it was not an answer to this one.

        Returns:
            The line without its end; `None` when there are no more.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; the line is dropped.
            NewsCame: See `interrupted_by`.
        """
        self.fresh_line()
        if sys.stdin is None:
            return None
        try:
            if anew and self.has_person:
                self._keep_typed()
            if self.has_person and self._aside is sys.stdout and self._aside.isatty():
                return self._edited_line(prompt, anew=anew)
            if self.has_person:
                self._put(self._aside, prompt, "")
            line = sys.stdin.readline()
        except EOFError:
            line = ""
        except KeyboardInterrupt:
            self._put(self._aside, "\n", "")
            raise
        if not line and self.has_person:
            self._put(self._aside, "\n", "")
        return line.removesuffix("\n") if line else None

    def read_message(self, prompt: str) -> str | None:
        """
        Like `read_line`, but a backslash at the end of a line continues it in the next one.
        """
        said, news = self.read_line(prompt), self._news
        self._news = None  # which would drop what was typed
        try:
            while said is not None and self.has_person and said.endswith("\\"):
                more = self.read_line(_MORE)
                said = said.removesuffix("\\") + ("" if more is None else f"\n{more}")
        finally:
            self._news = news
        return said

    def _keep_typed(self) -> None:
        """Take what was typed so far, for a later prompt; `EOFError` for Ctrl-D."""
        kept = _all_typed()
        self._kept += kept
        for line in kept:
            self.notice(f"(Typed before this question, so it does not answer it: {line})")

    def _edited_line(self, prompt: str, *, anew: bool) -> str:
        """A line typed before the prompt came, or one that `input` edits; `EOFError` for Ctrl-D."""
        if self._kept and not anew:
            self._kept += _all_typed()
            with _repeated_interrupts(), _prefilled(self._kept.pop(0)):
                return _input(prompt)
        typed = "" if anew else _typed_ahead()
        if typed.endswith("\n"):
            self._put(self._out, f"{prompt}{typed}", "")
            return typed.removesuffix("\n")
        if self._news is None or typed:
            with _repeated_interrupts(), _prefilled(typed):
                return _input(prompt)
        with _by_key() as show_keys:
            self._wait_for_key(prompt, self._news)
            show_keys()
            with _repeated_interrupts():
                return _input(prompt)

    def _wait_for_key(self, prompt: str, news: int) -> None:
        """Show *prompt* until a key is pressed, which stays to be read, or raise `NewsCame`."""
        self._put(self._out, prompt, "")
        ready, _, _ = select.select([sys.stdin, news], [], [])
        self._out.write(f"\r{' ' * len(prompt)}\r")  # what comes now takes its place
        self._out.flush()
        if sys.stdin not in ready:
            raise NewsCame

    def _put(self, stream: TextIO, text: str, style: str) -> None:
        with self._lock:
            self._erase()
            self._shown_at = time.monotonic()
            stream.write(self._styled(stream, safe_text(text), style))
            stream.flush()

    def _styled(self, stream: TextIO, text: str, style: str) -> str:
        if not style or stream not in self._coloured:
            return text
        body = text.removesuffix("\n")
        return f"\x1b[{style}m{body}\x1b[0m{text[len(body) :]}"

    def _draw(self, line: str) -> None:
        """Show *line* in place of the last one."""
        self._aside.write("\r" + self._styled(self._aside, line, "2"))
        self._aside.flush()
        self._working = line

    def _erase(self) -> None:
        if self._working:
            self._aside.write(f"\r{' ' * len(self._working)}\r")
            self._aside.flush()
            self._working = ""


@contextmanager
def _repeated_interrupts() -> Iterator[None]:
    """
    Let a Ctrl-C take effect at once while `input` reads.

    readline checks for one only while it waits for a key. A Ctrl-C that comes while it draws would
    be found with the next line, which would be dropped with it; so a thread sends it again.
    """
    if not hasattr(signal, "pthread_kill"):
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    reading = threading.get_ident()

    def repeat() -> None:
        pressed, left = False, _REPEATS
        while True:
            patience_s = _REPEAT_AFTER_S if pressed and left else None
            came, _, _ = select.select([reader], [], [], patience_s)
            if not came:
                left -= 1
                signal.pthread_kill(reading, signal.SIGINT)
            elif signals := os.read(reader, 64):
                pressed = pressed or signal.SIGINT in signals
            else:
                return

    thread = threading.Thread(target=repeat, name="looopy-interrupts", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _typed_ahead() -> str:
    """
    The line that a person typed while it was not read; without its end if it has none yet.

    readline changes the terminal's mode, and a Ctrl-D that came before would be lost with that.
    Keys that came in readline's own mode are several lines at once, with the ends that keys have.

    Raises:
        EOFError: Ctrl-D was pressed at the beginning of the line.
    """
    typed = b""
    if os.name != "posix":
        return ""  # select is for sockets there
    while _goes_on(typed) and (_later or select.select([sys.stdin], [], [], 0)[0]):
        piece = bytes(_later) or os.read(sys.stdin.fileno(), 4096).replace(b"\r", b"\n")
        _later.clear()
        if not piece or (not typed and piece.startswith(_CTRL_D)):
            raise EOFError
        typed += piece
        line, end, rest = typed.partition(b"\n")
        if end and rest and _PASTE_BEGINS.encode() not in typed:
            typed = line + end
            _later.extend(rest)
    text = typed.decode(sys.stdin.encoding, "surrogateescape")
    if _in_paste(typed):  # its last line has no end
        text += _begun_line()
    return text.replace(_PASTE_BEGINS, "").replace(_PASTE_ENDS, "")


def _goes_on(typed: bytes) -> bool:
    """True if what was *typed* is not a whole line, or stops within a paste."""
    return not typed.endswith(b"\n") or _in_paste(typed)


def _in_paste(typed: bytes) -> bool:
    return typed.rfind(_PASTE_BEGINS.encode()) > typed.rfind(_PASTE_ENDS.encode())


def _all_typed() -> list[str]:
    """Every line that a person typed unread, the unfinished too; see `_typed_ahead`."""
    lines = []
    while (typed := _typed_ahead()).endswith("\n"):
        lines.append(typed.removesuffix("\n"))
    lines.append(typed + _begun_line())
    return [line for line in lines if line]


def _begun_line() -> str:
    """The text of a line without an end, which a terminal gives away only if asked for keys."""
    if os.name != "posix":
        return ""
    stdin = sys.stdin.fileno()
    typed = b""
    with _by_key() as show_keys:
        show_keys()
        while select.select([stdin], [], [], 0)[0] and (piece := os.read(stdin, 4096)):
            typed += piece
    return typed.decode(sys.stdin.encoding, "surrogateescape")


@contextmanager
def _by_key() -> Iterator[Callable[[], None]]:
    """
    Let the terminal give each key away at once, and not show it.

    Call the function that this yields to have keys shown again.
    """
    import termios

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    by_key = termios.tcgetattr(stdin)
    by_key[3] &= ~termios.ICANON

    def echo(mode: int) -> None:
        by_key[3] = (by_key[3] & ~termios.ECHO) | (mode & termios.ECHO)
        termios.tcsetattr(stdin, termios.TCSANOW, by_key)

    try:
        echo(0)
        yield lambda: echo(before[3])
    finally:
        termios.tcsetattr(stdin, termios.TCSANOW, before)


@contextmanager
def _prefilled(text: str) -> Iterator[None]:
    """Let `input` begin with *text*, which can be edited."""
    if not text:
        yield
        return
    import readline

    readline.set_startup_hook(lambda: readline.insert_text(text))
    try:
        yield
    finally:
        readline.set_startup_hook(None)


class _Lines(logging.Formatter):
    """Lines that no terminal obeys: a log quotes models, tools and other servers."""

    def format(self, record: logging.LogRecord) -> str:
        """*record* with its traceback."""
        return safe_text(super().format(record))


def log_lines(level: int, form: str) -> None:
    """Write the log of this process to standard error, in *form*, through the filter."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(form))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def prepare_streams() -> None:
    """
    Let no character of the input or for the output end the program.

    A character that a stream cannot encode is written as an escape. Bytes that are not text come in
    as surrogates, which the stores refuse with an error about them.
    """
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=errors)


def edit_lines() -> None:
    """Give `input` the arrow keys, a history and whole pastes, where the system has readline."""
    global _marks_pastes  # noqa: PLW0603 - of the one terminal of this process, as readline's state
    try:
        import readline
    except ImportError:
        return
    readline.set_auto_history(True)
    if "libedit" in (readline.__doc__ or "") or not sys.stdout.isatty():
        return  # libedit knows no marks
    readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
    for enter in (r"\C-m", r"\C-j"):  # the second if it was pressed before readline set the mode
        readline.parse_and_bind(rf'"\e{enter}": "\C-v\C-j"')
    # A Ctrl-D pressed before the prompt is a null once readline has set the mode of the terminal.
    readline.parse_and_bind(r'"\C-@": "\C-d"')
    _marks_pastes = True
    _mark_pastes()
    atexit.register(sys.stdout.write, _PASTE_OFF)


def _input(prompt: str) -> str:
    """Like `input`, after which readline would let pastes come without their marks."""
    try:
        return input(prompt)
    finally:
        _mark_pastes()


def _mark_pastes() -> None:
    if _marks_pastes:
        sys.stdout.write(_PASTE_ON)
        sys.stdout.flush()
