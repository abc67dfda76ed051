"""A real web server on this machine, for tests."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Web:
    """`url` serves a folder. With `ranges` it answers requests for parts of files; `breaks` are numbers of bytes after
    which answers to come are broken off; `status` is what all requests are answered with, if it is not 0."""

    url: str = ""
    ranges: bool = True
    breaks: list[int] = field(default_factory=list)
    status: int = 0
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Web]:
    web = Web()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, directory=str(folder), **kwargs)

        def log_message(self, *args: Any) -> None:
            """Not to the terminal."""

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            web.requests.append((self.command, self.path, self.headers.get("Range")))
            path = Path(self.translate_path(self.path))
            if web.status or not path.is_file():
                self.send_error(web.status or 404)
                return
            data = path.read_bytes()
            size, start = len(data), 0
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if match and web.ranges:
                start = int(match[1])
                data = data[start : int(match[2]) + 1 if match[2] else None]
                if not data:
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{start + len(data) - 1}/{size}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                broken = web.breaks.pop(0) if web.breaks else None
                self.wfile.write(data[:broken])
                self.close_connection = broken is not None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
