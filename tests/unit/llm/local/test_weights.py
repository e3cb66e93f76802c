"""Weights are fetched once, after consent, part by part; every interruption can be gone on from."""

import hashlib
import os
import stat
import sys
import threading
from dataclasses import replace

import pytest

from looopy.errors import ConfigurationError, UnknownModel
from looopy.llm.local.catalogue import (
    Download,
    LocalModel,
    Part,
    cache_folder,
    catalogue,
    find_model,
    is_cached,
)
from looopy.llm.local.installer import installers
from looopy.llm.local.progress import StderrProgress
from looopy.llm.local.weights import fetch

TOOL = """
import pathlib, shutil, sys
shelf, requirements, target = map(pathlib.Path, sys.argv[1:])
line = requirements.read_text().split()
assert line[1].startswith("--hash=sha256:"), line
with (shelf / "log").open("a") as log:
    log.write(line[0] + "\\n")
if not (shelf / line[0]).is_dir():
    sys.exit("error: no route to https://ada:secret@mirror.example/simple")
shutil.copytree(shelf / line[0], target, dirs_exist_ok=True)
"""
PIECES = [b"first piece;", b"second;", b"the third and last"]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class Shelf:
    """Packages in a folder, and a package tool that takes them from there."""

    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir()
        self.tool = folder / "tool.py"
        self.tool.write_text(TOOL, encoding="utf-8")
        for index in range(len(PIECES)):
            self.put(index)

    def put(self, index, content=None):
        package = self.folder / f"piece{index}==1"
        (package / "data").mkdir(parents=True, exist_ok=True)
        (package / "data" / "piece.bin").write_bytes(content or PIECES[index])

    def take_away(self, index):
        (self.folder / f"piece{index}==1").rename(self.folder / f"hidden{index}")

    def command(self, requirements, target):
        return [sys.executable, *map(str, (self.tool, self.folder, requirements, target))]

    @property
    def asked_for(self):
        log = self.folder / "log"
        return log.read_text().split() if log.exists() else []


class Seen(list):
    """Everything that happens, in order: what is said, how far it got, who was asked."""

    def say(self, text):
        self.append(text)

    def advance(self, done_bytes, total_bytes):
        self.append((done_bytes, total_bytes))

    def agree(self, download):
        self.append(download)
        return True


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / "shelf")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("LOOOPY_YES", raising=False)
    monkeypatch.setenv("LOOOPY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model():
    whole = b"".join(PIECES)
    return LocalModel(
        name="tiny",
        title="Tiny 1B",
        licence="Apache-2.0",
        publisher="Nobody",
        memory_bytes=3_000_000,
        file="tiny.gguf",
        size_bytes=len(whole),
        sha256=sha256(whole),
        note="of no use",
        parts=tuple(
            Part(
                requirement=f"piece{index}==1",
                wheel_sha256="00" * 32,
                path="data/piece.bin",
                sha256=sha256(piece),
                size_bytes=len(piece),
            )
            for index, piece in enumerate(PIECES)
        ),
    )


def get(model, shelf, consent=lambda _download: True, **more):
    more = {"progress": Seen(), "tools": [shelf.command], **more}
    return fetch(model, consent, **more)


def test_parts_are_fetched_checked_and_joined(model, shelf, cache):
    """What remains is the one file; parts and scratch are gone."""
    assert not is_cached(model)
    path = get(model, shelf)
    assert path.read_bytes() == b"".join(PIECES)
    assert is_cached(model)
    assert shelf.asked_for == ["piece0==1", "piece1==1", "piece2==1"]
    assert sorted(one.name for one in cache.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]


def test_weights_on_disk_are_neither_confirmed_nor_downloaded(model, shelf):
    """A second fetch only says where it is."""
    first = get(model, shelf)

    def never(_download):
        raise AssertionError("asked again")

    assert get(model, shelf, consent=never) == first
    assert len(shelf.asked_for) == 3


def test_size_licence_and_name_are_shown_before_anybody_is_asked(model, shelf, cache):
    """The notice comes first, then the question, then the download."""
    seen = Seen()
    get(model, shelf, consent=seen.agree, progress=seen)
    notice, download = seen[:2]
    for word in ("Tiny 1B", "Apache-2.0", "Nobody", "of no use", str(cache)):
        assert word in notice
    assert isinstance(download, Download)
    assert (download.size_bytes, download.disk_bytes) == (37, 74)
    assert seen[2:6] == [(0, 37), (12, 37), (19, 37), (37, 37)]


def test_weights_are_not_downloaded_without_consent(model, shelf):
    """A no ends it, and the message says what else there is."""
    with pytest.raises(ConfigurationError, match=r"not downloaded: .*\.gguf"):
        get(model, shelf, consent=lambda _download: False)
    assert shelf.asked_for == []


def test_without_a_terminal_it_asks_for_yes_instead(model, shelf, monkeypatch):
    """Nobody downloads a gigabyte unasked; small models are no exception."""
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigurationError, match=r"--yes .* LOOOPY_YES=1"):
        get(model, shelf, consent=None)
    assert shelf.asked_for == []


def test_the_variable_agrees_beforehand(model, shelf, monkeypatch):
    """`LOOOPY_YES=1` stands for the answer."""
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setenv("LOOOPY_YES", "1")
    assert get(model, shelf, consent=None).exists()


@pytest.mark.parametrize(("answer", "agreed"), [("", True), ("Y", True), ("n", False)])
def test_on_a_terminal_the_question_is_asked_there(model, shelf, monkeypatch, answer, agreed):
    """Enter means yes. The terminal is a real one."""
    master, slave = os.openpty()
    os.write(master, f"{answer}\n".encode())
    with (
        os.fdopen(slave) as keyboard,
        os.fdopen(os.dup(slave), "w") as screen,
        os.fdopen(master, "rb", buffering=0) as seen,
    ):
        monkeypatch.setattr(sys, "stdin", keyboard)
        monkeypatch.setattr(sys, "stderr", screen)
        if agreed:
            assert get(model, shelf, consent=None).exists()
        else:
            with pytest.raises(ConfigurationError, match="not downloaded"):
                get(model, shelf, consent=None)
        shown = b""
        while b"Download it now? [Y/n]" not in shown:  # a terminal passes text on in pieces
            shown += seen.read(10_000)


def test_a_broken_download_resumes_at_the_missing_part(model, shelf):
    """Finished parts are kept; the message names the part and the ways to go on."""
    shelf.take_away(1)
    with pytest.raises(ConfigurationError, match=r"part 2 of 3 .*run it again") as caught:
        get(model, shelf)
    assert "no route to" in str(caught.value)
    assert "secret" not in str(caught.value)
    shelf.put(1)
    seen = Seen()
    get(model, shelf, consent=seen.agree, progress=seen)
    assert seen[1].size_bytes == len(PIECES[1]) + len(PIECES[2])
    assert shelf.asked_for == ["piece0==1", "piece1==1", "piece1==1", "piece2==1"]


@pytest.mark.parametrize("content", [b"another", b"of another length"])
def test_a_part_with_other_content_is_deleted_and_named(model, shelf, cache, content):
    """Whatever the tool let through, only the expected bytes are kept."""
    shelf.put(1, content)
    with pytest.raises(ConfigurationError, match=r"part 2 of 3 .*expected hash and was deleted"):
        get(model, shelf)
    assert [one.name for one in (cache / "tiny.gguf.parts").iterdir()] == ["01"]
    shelf.put(1)
    assert get(model, shelf).read_bytes() == b"".join(PIECES)


def test_a_part_that_went_bad_on_disk_is_found_and_fetched_again(model, shelf, cache):
    """Its size is right, so only its hash tells, when the parts are joined."""
    shelf.take_away(2)
    with pytest.raises(ConfigurationError):
        get(model, shelf)
    (cache / "tiny.gguf.parts" / "01").write_bytes(PIECES[0].upper())
    shelf.put(2)
    with pytest.raises(ConfigurationError, match=r"part 1 of 3 .*was deleted"):
        get(model, shelf)
    assert not is_cached(model)
    assert get(model, shelf).read_bytes() == b"".join(PIECES)
    assert shelf.asked_for.count("piece1==1") == 1


def test_joined_weights_with_another_hash_are_never_used(model, shelf, cache):
    """The hash of the whole decides in the end."""
    other = replace(model, sha256="00" * 32)
    with pytest.raises(ConfigurationError, match="all parts were deleted"):
        get(other, shelf)
    assert [one.name for one in cache.iterdir()] == ["tiny.gguf.lock"]


def test_too_little_disk_is_said_before_anybody_is_asked(model, shelf):
    """With what it needs and what there is."""
    huge = replace(model, size_bytes=10**18)
    seen = Seen()
    with pytest.raises(ConfigurationError, match=r"needs 1000000000\.0 GB .*which has [\d.]+ GB"):
        get(huge, shelf, consent=seen.agree, progress=seen)
    assert (list(seen), shelf.asked_for) == ([], [])


def test_a_folder_that_cannot_be_written_is_a_clear_error(model, shelf, cache):
    """The way out is the variable."""
    cache.write_text("a file is in the way")
    with pytest.raises(ConfigurationError, match="set LOOOPY_CACHE"):
        get(model, shelf)


def test_two_fetches_at_once_bring_each_part_once(model, shelf):
    """The second waits for the first and finds everything there."""
    found = []
    together = threading.Barrier(2)

    def one():
        together.wait()
        found.append(get(model, shelf))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [model.path] * 2
    assert sorted(shelf.asked_for) == ["piece0==1", "piece1==1", "piece2==1"]


def test_a_fetch_that_is_stopped_ends_the_tool(model, shelf, tmp_path):
    """The tool is in the middle of its work; its end of the pipe closes when it dies."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = "import sys, time; file = open(sys.argv[1], 'w'); file.write('x'); file.flush()\n"
    script += "while True: time.sleep(1)"
    stop = threading.Event()
    heard = []

    def listen():
        with pipe.open() as file:
            heard.append(file.read(1))
            stop.set()
            heard.append(file.read())  # returns when nobody holds the other end any more

    listener = threading.Thread(target=listen)
    listener.start()
    with pytest.raises(ConfigurationError, match="was stopped: run it again"):
        get(
            model,
            shelf,
            stop=stop,
            tools=[lambda _file, _target: [sys.executable, "-c", script, str(pipe)]],
        )
    listener.join()
    assert heard == ["x", ""]


def test_the_next_tool_is_tried_when_one_fails(model, shelf):
    """So `pip` helps where `uv` knows nothing of the user's mirror."""
    broken = [sys.executable, "-c", "raise SystemExit('no')"]
    path = get(model, shelf, tools=[lambda _file, _target: broken, shelf.command])
    assert path.read_bytes() == b"".join(PIECES)


def test_a_missing_tool_is_a_clear_error(model, shelf):
    """A command that cannot be started is a failed one."""
    with pytest.raises(ConfigurationError, match=r"part 1 of 3 .*could not be downloaded"):
        get(model, shelf, tools=[lambda _file, _target: ["no-such-tool"]])


def test_uv_is_preferred_and_hashes_are_always_required(tmp_path, monkeypatch):
    """The first tool is the `uv` on the path; no dependency, no build, no unchecked file."""
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = installers()[0](tmp_path / "r.txt", tmp_path / "t")
    assert command[:3] == (str(uv), "pip", "install")
    for option in ("--no-deps", "--require-hashes", "--only-binary", "--target"):
        assert option in command


def test_the_catalogue_is_whole():
    """Parts add up to their model, names are unique, every hash is one."""
    models = catalogue()
    assert [model.name for model in models] == ["qwen2.5-coder-1.5b", "smollm2-135m"]
    for model in models:
        assert sum(part.size_bytes for part in model.parts) == model.size_bytes
        assert model.licence == "Apache-2.0"
        for digest in (model.sha256, *(part.wheel_sha256 for part in model.parts)):
            assert len(bytes.fromhex(digest)) == 32


def test_default_is_the_first_of_the_catalogue_and_others_go_by_name():
    """An unknown name is answered with the known ones."""
    assert find_model("default") is catalogue()[0]
    assert find_model("smollm2-135m") is catalogue()[1]
    with pytest.raises(UnknownModel, match=r"qwen2.5-coder-1.5b.*smollm2-135m.*\.gguf"):
        find_model("gpt-5")


def test_the_cache_folder_follows_the_system(monkeypatch, tmp_path):
    """`LOOOPY_CACHE` wins; else what the system prescribes for the user."""
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("LOOOPY_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "xdg" / "looopy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "looopy"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "looopy"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "looopy" / "cache"


def test_progress_without_a_terminal_is_plain_lines(capsys):
    """No bar, no control characters."""
    progress = StderrProgress()
    progress.say("hello")
    progress.advance(52_000_000, 1_100_000_000)
    assert capsys.readouterr().err == "hello\nfetched 52 MB of 1.1 GB\n"


def test_progress_on_a_terminal_is_a_bar(monkeypatch, capsys):
    """It is drawn over itself and closed before anything else is said."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = StderrProgress()
    progress.advance(1_000_000, 2_000_000)
    progress.say("done")
    assert capsys.readouterr().err == f"\r[{'#' * 15}{'-' * 15}] 1 MB of 2 MB \ndone\n"
