"""An S3 server of our own on loopback, for the tests of blobs: moto's, in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

_WAIT_S = 160.0  # it imports for seconds, and longer beside others
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The endpoint of a server that is up."""
    # The client of buckets is not made without any certificate; see `ground.trust_nobody`.
    none = os.environ.pop("SSL_CERT_DIR", None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **KEYS},
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _wait_for(endpoint, server)
        yield endpoint
    finally:
        server.terminate()
        server.wait()
        if none is not None:
            os.environ["SSL_CERT_DIR"] = none


def new_bucket(endpoint: str, name: str) -> str:
    """The URL of an empty bucket, as `open_stores(blobs=...)` takes it."""
    _ask(endpoint, "PUT", f"/{name}")
    return f"s3://{name}/looopy?region=us-east-1&endpoint={endpoint}"


def _wait_for(endpoint: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(OSError):
            _ask(endpoint, "GET", "/")
            return
        time.sleep(0.05)
    raise RuntimeError("the S3 server did not start")


def _ask(endpoint: str, method: str, path: str) -> None:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=20)
    with contextlib.closing(connection):
        connection.request(method, path)
        connection.getresponse().read()
