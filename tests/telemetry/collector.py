"""
A collector that others wrote, and where it sends what it receives.

`rotel` is a collector of OpenTelemetry's protocol, written in Rust. It runs as a process, takes
what looopy exports, and hands it on to `Sink`, which reads it with OpenTelemetry's own types.
"""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE_S = 60


class Sink:
    """An end of the line: keeps the bodies of all requests."""

    def __init__(self):
        self.bodies = []
        self._news = threading.Condition()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            """Takes a request, whatever it is."""

            def do_POST(self):
                """Keep the body."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                with sink._news:
                    sink.bodies.append((self.path, body))
                    sink._news.notify_all()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self):
        """All spans so far."""
        found = []
        for path, body in self.bodies:
            if path.endswith("/traces"):
                request = ExportTraceServiceRequest.FromString(body)
                scopes = (s for r in request.resource_spans for s in r.scope_spans)
                found += [span for scope in scopes for span in scope.spans]
        return found

    def processes(self):
        """The process that sent each span, as its resource says: by the id of the span."""
        found = {}
        for path, body in self.bodies:
            if path.endswith("/traces"):
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    said = {one.key: one.value.string_value for one in group.resource.attributes}
                    for scope in group.scope_spans:
                        for span in scope.spans:
                            found[span.span_id] = said["service.instance.id"]
        return found

    def metrics(self):
        """The names of all metrics so far."""
        found = set()
        for path, body in self.bodies:
            if path.endswith("/metrics"):
                request = ExportMetricsServiceRequest.FromString(body)
                scopes = (s for r in request.resource_metrics for s in r.scope_metrics)
                found |= {metric.name for scope in scopes for metric in scope.metrics}
        return found

    def wait_for(self, found):
        """Wait until `found()` is true, and return it."""
        with self._news:
            assert self._news.wait_for(found, timeout=PATIENCE_S), [s.name for s in self.spans()]
        return found()


@contextmanager
def collecting(folder):
    """A collector; gives its URL, and the sink behind it."""
    binary = Path(find_spec("rotel").origin).parent / "rotel-agent"
    with ExitStack() as stack:
        sink = Sink()
        stack.callback(sink.server.server_close)
        threading.Thread(target=sink.server.serve_forever, args=(0.02,), daemon=True).start()
        stack.callback(sink.server.shutdown)
        grpc, http = _free_port(), _free_port()
        given = {
            "OTLP_GRPC_ENDPOINT": f"127.0.0.1:{grpc}",
            "OTLP_HTTP_ENDPOINT": f"127.0.0.1:{http}",
            "EXPORTER": "otlp",
            "OTLP_EXPORTER_ENDPOINT": sink.url,
            "OTLP_EXPORTER_PROTOCOL": "http",
            "BATCH_TIMEOUT": "20ms",
            "PID_FILE": str(folder / "rotel.pid"),
            "LOG_FILE": str(folder / "rotel.log"),
        }
        env = os.environ | {f"ROTEL_{name}": value for name, value in given.items()}
        with (folder / "rotel.out").open("w") as out:
            process = subprocess.Popen([binary, "start"], env=env, stdout=out, stderr=out)
        stack.callback(process.wait)
        stack.callback(process.kill)
        while not _answers(http):
            assert process.poll() is None, (folder / "rotel.out").read_text()
        yield f"http://127.0.0.1:{http}", sink


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def _answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
