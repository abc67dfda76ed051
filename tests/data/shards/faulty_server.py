"""A real HTTP server that serves a folder and fails as it is told: some answers break off, some stall."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Fault = Callable[[int], str]  # of the number of a request for bytes: "", "refuse", "break off", "stall" or "garble"
STALLED_AT_MOST_S = 60.0


class FaultyServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, fault: Fault) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.fault = folder, fault
        self.counting = threading.Lock()
        self.asked = 0
        self.ranges: list[tuple[str, int, int]] = []
        self.faults: list[str] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FaultyServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.server.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        start, stop = 0, len(data)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            start, stop = int(wanted[1]), min(int(wanted[2] or stop - 1) + 1, stop)
        with self.server.counting:
            number = self.server.asked
            self.server.asked += body
            fault = self.server.fault(number) if body else ""
            if fault == "garble" and (path.name, start, stop) in self.server.ranges:
                fault = ""  # the second time it comes as it is
            self.server.faults += [fault] if fault else []
            if body:
                self.server.ranges.append((path.name, start, stop))
        if fault == "refuse":
            self.send_error(503)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.end_headers()
        if not body:
            return
        part = data[start:stop]
        if fault in ("break off", "stall"):
            self.wfile.write(part[: len(part) // 2])
            if fault == "stall":
                self.server.over.wait(STALLED_AT_MOST_S)
            self.close_connection = True
            return
        if fault == "garble":
            part = part[:-1] + bytes([part[-1] ^ 1])
        self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(folder: Path, fault: Fault = lambda number: "") -> Iterator[FaultyServer]:
    server = FaultyServer(folder, fault)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="faulty-server", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
