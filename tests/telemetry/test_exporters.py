"""A collector that answers nonsense, hangs or is named wrongly, as `looopy serve` meets it."""

import http.server
import logging
import threading
from contextlib import suppress

import pytest

from looopy.cli.terminal import log_lines
from looopy.errors import ConfigurationError
from looopy.telemetry import exporters

ENDLESS = 50_000_000


class Nonsense(http.server.BaseHTTPRequestHandler):
    """Answers with a body that does not end, and a reason that clears screens."""

    sent = 0

    def do_POST(self):
        """Send until the other side has had enough."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200, "fine\x1b[2J")
        self.end_headers()
        with suppress(OSError):
            while Nonsense.sent < ENDLESS:
                Nonsense.sent += self.wfile.write(b"x" * 65536)

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def nonsense():
    """Its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nonsense) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()


def test_an_endless_answer_is_read_in_part(nonsense):
    """OpenTelemetry reads the whole body of an answer: it would fill the memory of the server."""
    with exporters._session("TRACES") as session:
        response = session.post(nonsense, data=b"spans")
        assert (response.ok, len(response.content)) == (True, 64 * 1024)
    assert Nonsense.sent < ENDLESS


def test_the_environment_may_bring_its_own_connections(monkeypatch):
    """With credentials that OpenTelemetry finds by itself."""
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "mine")
    assert exporters._session("TRACES") is None
    assert exporters._session("METRICS") is not None


def test_the_end_waits_once_for_all_exporters_together(monkeypatch):
    """Each may hang, and a server ends all the same."""
    waited: list[float] = []

    class Thread(threading.Thread):
        def join(self, timeout=None):
            waited.append(timeout)
            super().join(timeout)

    monkeypatch.setattr(exporters.threading, "Thread", Thread)
    monkeypatch.setattr(exporters, "_CLOSING_S", 0.05)
    over = threading.Event()
    try:
        exporters._close([over.wait, over.wait, over.wait])
    finally:
        over.set()
    assert waited[0] <= 0.05
    assert waited[1:] == [0, 0]


@pytest.mark.parametrize(
    "url",
    ["foo bar", "ftp://127.0.0.1", "127.0.0.1:4318", "http://", "http://h:99999", "http://h:0"],
)
def test_an_endpoint_that_is_no_address_is_refused_at_the_start(monkeypatch, url):
    """By its variable: each batch would be lost, and the log would fill up."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        with monkeypatch.context() as patch:
            patch.setenv(name, url)
            with pytest.raises(ConfigurationError, match=f"{name} is the URL of a collector"):
                exporters.start_exporters()


def test_a_service_has_a_name_unless_the_environment_gives_one(monkeypatch):
    """OpenTelemetry would call it unknown."""
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    assert exporters._resource().attributes["service.name"] == "looopy"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "desk")
    assert exporters._resource().attributes["service.name"] == "desk"


class Said:
    """Shows itself as a model may name a thing."""

    def __repr__(self):
        return "\x1b]0;title\x07"


def test_no_terminal_obeys_the_log(capsys, monkeypatch):
    """A collector, a tool or a model may say what stands in it."""
    root = logging.getLogger()
    level = root.level
    monkeypatch.setattr(root, "handlers", [])
    try:
        log_lines(logging.WARNING, "%(levelname)s %(message)s")
        try:
            {}[Said()]
        except KeyError:
            logging.getLogger("other").exception("reason: no\x1b[2J\u202e\nand more")
    finally:
        root.setLevel(level)
    said = capsys.readouterr().err
    assert said.startswith("ERROR reason: no\u241b[2J\ufffd\nand more\nTraceback")
    assert "\u241b]0;title\u2407" in said
    assert "\x1b" not in said
