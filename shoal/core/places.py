"""Where files lie: a local path, hdfs://, s3://, https:// or what else fsspec knows; with errors for people."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from shoal.core.errors import ShoalError, UserError

_EXTRAS = {"s3": "s3", "s3a": "s3", "hdfs": "hdfs", "http": "https", "https": "https"}
_ABSENT = ("NoSuchBucket", "NoSuchKey", "404")
_REFUSED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden", "Unauthorized", "403", "401")
_S3_ENVIRONMENT = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
# what libraries raise, without its being an OSError, when a service does not answer in the middle of things
_MAY_PASS = [
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "EndpointConnectionError",
    "ConnectionClosedError",
    "HTTPClientError",
    "ResponseStreamingError",
    "IncompleteRead",
    "FSTimeoutError",
    "ServerDisconnectedError",
    "ClientPayloadError",
]
_ANSWER_S = 5.0  # how long one may take to accept a connection, when it is asked for the first time
# listings are never kept: others write, too. The name node is asked for seconds, not for minutes
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "s3": {"use_listings_cache": False},
    "s3a": {"use_listings_cache": False},
    "http": {"use_listings_cache": False},
    "https": {"use_listings_cache": False},
    "hdfs": {
        "dfs.client.failover.max.attempts": "4",
        "dfs.client.failover.sleep.base.millis": "250",
        "dfs.client.failover.sleep.max.millis": "2000",
    },
}
_MADE: dict[tuple[int, str, str], Any] = {}  # file systems, by process: they have threads


class AccessError(UserError):
    """A place cannot be used: it is not there, cannot be reached, or one may not."""


class AbsentError(AccessError):
    """There is nothing at a place."""


class UnreachableError(AccessError):
    """Nobody answers for a place. That may pass."""


@dataclass(frozen=True)
class Entry:
    """A file that was listed. `mark` changes with its content: a time, a version or a checksum, as the place has it."""

    place: Place
    nbytes: int
    mark: str


@dataclass(frozen=True)
class Place:
    """A file or a folder. `options` are fsspec's own, such as an endpoint; they are not part of `url`.

    What is asked of it raises `AccessError` for what a person can mend, which includes that nobody answers when this
    process asks for the first time; and `OSError` for what may pass.
    """

    url: str
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False, hash=False)  # may hold dicts

    @classmethod
    def of(cls, where: str | os.PathLike[str] | Place, options: Mapping[str, Any] | None = None) -> Place:
        """The place that is meant: local paths become absolute, and end without a slash."""
        if isinstance(where, Place):
            return where
        url = os.fspath(where)
        if not url:
            raise AccessError("an empty path was given: say where the data is")
        if url.startswith("file://"):
            url = url.removeprefix("file://")
        if "://" not in url:
            url = str(Path(url).expanduser().absolute())
        return cls(url.rstrip("/") or "/", tuple(sorted((options or {}).items())))

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Place:
        return Place(f"{self.url.rstrip('/')}/{name}", self.options)

    @property
    def protocol(self) -> str:
        return self.url.partition("://")[0] if "://" in self.url else "file"

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def is_local(self) -> bool:
        return self.protocol == "file"

    @property
    def fs(self) -> Any:
        """fsspec's file system, made in this process."""
        key = (os.getpid(), self.protocol + self._host, repr(self.options))
        if key not in _MADE:
            _MADE[key] = self._make()
        return _MADE[key]

    @property
    def _host(self) -> str:
        # what else one file system is for: a name node, a server, or those keys and that endpoint
        if self.protocol in ("s3", "s3a"):
            return " ".join(os.environ.get(name, "") for name in _S3_ENVIRONMENT)
        return self.url.partition("://")[2].partition("/")[0] if self.protocol in ("hdfs", "http", "https") else ""

    def _make(self) -> Any:
        defaults = {} if self.protocol == "hdfs" and "HADOOP_CONF_DIR" in os.environ else _DEFAULTS
        options = {**defaults.get(self.protocol, {}), **dict(self.options)}
        self._knock()
        try:
            import fsspec

            made, _ = fsspec.core.url_to_fs(self.url, skip_instance_cache=True, **options)
        except ImportError:
            extra = _EXTRAS.get(self.protocol, "data")
            raise AccessError(
                f"{self.url} needs a library that is not installed: pip install 'shoal[{extra}]'"
            ) from None
        except ValueError as error:
            raise AccessError(f"{self.url} cannot be opened: {error}") from None
        except Exception as error:
            self.refuse(error)
        return made

    def _knock(self) -> None:
        """Raises `AccessError` if nobody listens: what the libraries take minutes to find out, and say less clearly."""
        address = self._address
        if address is None:
            return
        try:
            socket.create_connection(address, _ANSWER_S).close()
        except OSError as error:
            why = f"no answer within {_ANSWER_S:.0f} s" if isinstance(error, TimeoutError) else error.strerror or error
            raise UnreachableError(
                f"{self.url} cannot be reached: {address[0]}, port {address[1]}: {why}. Check the address, and whether "
                "the service runs"
            ) from None

    @property
    def _address(self) -> tuple[str, int] | None:
        """Where a connection will go; None where only the library knows."""
        if self.protocol in ("s3", "s3a"):
            options = dict(self.options)
            endpoint = options.get("endpoint_url") or options.get("client_kwargs", {}).get("endpoint_url")
            url = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        else:
            url = self.url if self.protocol in ("hdfs", "http", "https") else ""
        parts = urllib.parse.urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        proxied = parts.scheme in ("http", "https") and urllib.request.getproxies().get(parts.scheme) is not None
        return (parts.hostname, port) if parts.hostname and port and not proxied else None

    @property
    def path(self) -> str:
        """As the file system has it."""
        stripped: str = self.fs._strip_protocol(self.url)
        return stripped

    # ---- reading

    def exists(self) -> bool:
        with self._told():
            return bool(self.fs.exists(self.path))

    def is_dir(self) -> bool:
        with self._told():
            return bool(self.fs.isdir(self.path))

    def nbytes(self) -> int:
        with self._told():
            return int(self.fs.size(self.path))

    def files(self) -> list[Entry]:
        """All files below it in order of their names, or the file that it is. Names that begin with a dot or an
        underscore are left out, as other tools do. Raises `AccessError` if there is nothing."""
        with self._told():
            found: dict[str, Any] = self.fs.find(self.path, detail=True)
            root = self.path.rstrip("/")
            entries = []
            for path, detail in sorted(found.items()):
                inner = path.removeprefix(root).lstrip("/")
                if detail.get("type", "file") == "file" and not any(
                    part.startswith((".", "_")) for part in inner.split("/")
                ):
                    place = self / inner if inner else self
                    nbytes = detail.get("size")
                    nbytes = self.fs.size(path) if nbytes is None else nbytes  # a list on the web has no sizes
                    entries.append(Entry(place, int(nbytes or 0), _mark(detail)))
        if not entries and not self.exists():
            raise AbsentError(f"{self.url} does not exist: check the path")
        return entries

    def read(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Its bytes, or those of a range."""
        with self._told():
            if self.protocol == "hdfs" and start is not None and stop is not None:
                return self._packets(start, stop)
            data: bytes = self.fs.cat_file(self.path, start=start, end=stop)
        if start is not None and stop is not None and len(data) > stop - start:
            return data[start:stop]  # a web server that knows no ranges has sent the whole file
        return data

    def _packets(self, start: int, stop: int) -> bytes:
        """As they come: for a range at once the library finds new room again and again, which takes twice as long."""
        with self.fs.open(self.path, "rb") as file:
            stop = min(stop, file.size)
            return b"".join(file.read_range_stream(start, stop - start)) if start < stop else b""

    def open(self, mode: str = "rb") -> Any:
        """A file object. Writing to it is not atomic: see `write`."""
        with self._told():
            if "w" in mode and self.is_local:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            return self.fs.open(self.path, mode)

    # ---- writing

    def write(self, data: bytes) -> None:
        """Put a file there, whole or not at all."""
        with self.writing() as file:
            file.write(data)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Any]:
        """A file object whose content appears under this name when the block ends well, and not at all otherwise."""
        parent, _, name = self.url.rpartition("/")
        draft = Place(f"{parent}/.{name}.{secrets.token_hex(4)}.tmp", self.options)
        with self._told():
            if self.protocol not in ("s3", "s3a", "http", "https", "memory"):
                self.fs.makedirs(draft.path.rpartition("/")[0] or "/", exist_ok=True)
            if self.protocol in ("s3", "s3a"):  # an object appears when it is complete
                file = self.fs.open(self.path, "wb")
                try:
                    yield file
                    file.close()
                except BaseException:
                    with contextlib.suppress(Exception):
                        file.discard()
                    file.closed = True  # or it would be completed after all when it is closed
                    raise
                return
            try:
                with self.fs.open(draft.path, "wb") as file:
                    yield file
                    if self.is_local:
                        file.flush()
                        os.fsync(file.fileno())
                draft.rename(self)
            except BaseException:
                with contextlib.suppress(Exception):
                    self.fs.rm(draft.path)
                raise

    def rename(self, to: Place) -> None:
        """Within one file system; what is there is replaced."""
        with self._told():
            if self.is_local:
                Path(self.path).replace(to.path)
                return
            if self.protocol == "hdfs":
                self.fs.mv(self.path, to.path, overwrite=True)
                return
            if self.fs.exists(to.path):
                self.fs.rm(to.path)
            self.fs.mv(self.path, to.path)

    def remove(self) -> None:
        """The file, or the folder with all that is in it, if it is there."""
        with self._told():
            if self.fs.exists(self.path):
                self.fs.rm(self.path, recursive=True)

    # ---- errors

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except ShoalError:
            raise
        except Exception as error:
            self.refuse(error)

    def refuse(self, error: Exception) -> NoReturn:
        """Raise what `error`, which came from the file system, means to a person; else itself."""
        # a number in an address is no answer: a port may be 40412, a file part-00404. A disk's errors have numbers of
        # their own, and its paths may hold any words
        words = "" if self.is_local else f"{type(error).__name__}: {error}".replace(self.url, "")

        def told(names: tuple[str, ...]) -> bool:
            return any(re.search(rf"\b{name}\b", words) for name in names)

        if getattr(error.__cause__, "status", None) in (401, 403):  # of a web server, which fsspec calls not found
            raise AccessError(f"{self.url} may not be used ({error.__cause__}): check the credentials") from None
        if isinstance(error, FileNotFoundError) or told(_ABSENT):
            raise AbsentError(f"{self.url} does not exist: check the path") from None
        if isinstance(error, PermissionError) or told(_REFUSED):
            raise AccessError(f"{self.url} may not be used ({error}): check the permissions or credentials") from None
        if "NoCredentials" in words or "Unable to locate credentials" in words:
            raise AccessError(
                f"{self.url} needs credentials and there are none: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from None
        if not isinstance(error, OSError) and type(error).__name__ in _MAY_PASS:
            raise ConnectionError(f"{self.url}: {words}") from error
        raise error


def _mark(detail: Mapping[str, Any]) -> str:
    for name in ("ETag", "etag", "mtime", "modified", "LastModified", "modification_time", "last_modified"):
        if detail.get(name) is not None:
            return str(detail[name])
    return ""
