"""A member's link to the coordinator: a thread that states the member's status at every beat and keeps the last word.

The link never fails: while the coordinator is away (it may be started again at any moment), statuses get lost, the last
word stays, and whoever waits waits up to its own deadline.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import zmq

from shoal.core.errors import ShoalError
from shoal.elastic.keys import ClientKeys
from shoal.elastic.messages import (
    MAX_FRAME_BYTES,
    BadMessage,
    Refused,
    Request,
    Status,
    Word,
    decode,
    decode_reply,
    encode,
)
from shoal.elastic.status import AgentWord, WorkerWord

T = TypeVar("T")

_SILENCE_S = 1.0  # without an answer for so long, the connection is made anew
_LATELY_S = 5.0
_LONGEST_PATIENCE = 8  # times the first one
_RESEND_S = 1.0  # a request without an answer is sent again
_RECONNECT_MS = 30
_MOST_RECONNECT_MS = 300


class _Call:
    """A request under way."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sent_s = 0.0  # monotonic; 0: not yet
        self.done = False
        self.answer: Any = None


class Link:
    """The link of one process, made after it was forked. Ready at once; the first word comes when it comes.

    `say`, `wait_until`, `request` and `close` may be called from any thread but the link's own; `word` from any.
    Hooks, set before the first `say`: `on_word(word)` is called in the link's thread with every new word, before
    waiting threads see it; `amend(status)` in the link's thread with every status on its way out, and returns what is
    really said. Both must be quick and must not wait for the link.
    """

    def __init__(self, address: str, keys: ClientKeys, beat_s: float) -> None:
        self.address = address
        self.on_word: Callable[[Any], None] = lambda word: None
        self.amend: Callable[[Any], Any] = lambda status: status
        self.keys, self._beat_s = keys, beat_s
        self._patience_s = max(_SILENCE_S, 3 * beat_s)
        self._changed = threading.Condition()
        self._status: Status | None = None
        self._word: Any = None
        self._said = self._heard = 0  # how often `say` was called; which of them the coordinator has answered
        self._calls: OrderedDict[bytes, _Call] = OrderedDict()
        self._origin = os.urandom(8)
        self._numbers = 0
        self._closing = False
        self._speak = False  # whether the link's thread should state the status before the next beat
        self._answered_s = float("-inf")
        self._renewals = 0  # sockets made since the last answer
        self._unanswered_s: float | None = None  # since when nothing that was sent is answered
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="shoal-link", daemon=True)
        self._thread.start()

    @property
    def word(self) -> Any:
        """The coordinator's last word, a `WorkerWord` or an `AgentWord`; None before the first."""
        return self._word

    @property
    def alive(self) -> bool:
        """Whether the coordinator has answered lately."""
        return self.silent_s < _LATELY_S

    @property
    def silent_s(self) -> float:
        """For how long the coordinator has not answered; infinity before its first answer."""
        return time.monotonic() - self._answered_s

    def say(self, status: Status) -> None:
        """State `status` now and at every beat, until there is another. Raises `BadMessage` if it breaks a limit."""
        decode(encode(status, b""))  # here, where it can be mended: the coordinator would drop it without a word
        with self._changed:
            self._status = status
            self._said += 1
        self.wake()

    def wake(self) -> None:
        """State the status at once, amended anew. Takes no lock, so that a signal handler may call it."""
        self._speak = True
        self._stir()

    def _stir(self) -> None:
        if not self._closing:
            os.eventfd_write(self._wake, 1)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the coordinator has answered what was said last. Returns whether it has."""
        with self._changed:
            said = self._said
            return self._changed.wait_for(lambda: self._heard >= said or self._closing, timeout_s) and not self._closing

    def wait_until(self, condition: Callable[[Any], T | None], timeout_s: float) -> T | None:
        """Wait until `condition(word)` returns something other than None, and return that; None after `timeout_s`.

        `condition` is called in this thread whenever the coordinator has spoken; it may raise, which ends the wait."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while True:
                result = condition(self._word) if self._word is not None else None
                if result is not None:
                    return result
                left_s = until - time.monotonic()
                if left_s <= 0 or self._closing:
                    return None
                self._changed.wait(left_s)

    def request(self, operation: Request, timeout_s: float, in_vain: Callable[[], bool] = lambda: False) -> Any:
        """Have the coordinator do `operation` (once, though it may be asked several times) and return its answer.

        `in_vain` is asked whenever the coordinator has spoken: if it returns True, nobody needs the answer any more.
        Raises `ShoalError` if none comes in time, or it is refused, and `BadMessage` if it breaks a limit."""
        decode(encode(operation, b""))
        with self._changed:
            self._numbers += 1
            token = self._origin + self._numbers.to_bytes(8, "big")
            call = self._calls[token] = _Call(encode(operation, token))
            self._stir()
            try:
                self._changed.wait_for(lambda: call.done or self._closing or in_vain(), timeout_s)
            finally:
                self._calls.pop(token, None)
            if isinstance(call.answer, Refused):
                raise ShoalError(f"the coordinator refuses: {call.answer.reason}")
            if call.done:
                return call.answer
        raise ShoalError(f"the coordinator at {self.address} gave no answer within {timeout_s:.1f} s")

    def fileno(self) -> int:
        """Readable after a new word, until `drain`. For selectors."""
        return self._news

    def drain(self) -> None:
        """Make the link unreadable until the next new word."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._news)

    def close(self) -> None:
        """End the link: no thread and no descriptor is left. What was said last may be lost: see `flush`."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)
        os.close(self._news)

    # in the link's own thread

    def _run(self) -> None:
        context = zmq.Context()
        socket = self._connect(context)
        try:
            said_s = 0.0
            while not self._closing:
                now = time.monotonic()
                # on a machine that is too busy to shake hands in time, a new socket every time would never be done
                patience_s = self._patience_s * min(1 << self._renewals, _LONGEST_PATIENCE)
                if self._unanswered_s is not None and now - self._unanswered_s > patience_s:
                    socket.close(linger=0)
                    socket = self._connect(context)
                    self._renewals += 1
                    self._unanswered_s, said_s = None, 0.0
                self._take_wake()
                if self._speak or now - said_s >= self._beat_s:
                    self._speak = False
                    self._send_status(socket)
                    said_s = now
                self._send_calls(socket, now)
                if self._wait(socket, said_s + self._beat_s):
                    self._receive(socket)
        finally:
            socket.close(linger=0)
            context.destroy(linger=0)

    def _connect(self, context: zmq.Context[Any]) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket.identity = os.urandom(16).replace(b"\0", b"\1")  # an identity must not begin with a zero
        socket.curve_serverkey = self.keys.server_public.encode()
        socket.curve_publickey = self.keys.client_public.encode()
        socket.curve_secretkey = self.keys.client_secret.encode()
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _MOST_RECONNECT_MS)
        socket.setsockopt(zmq.SNDHWM, 64)
        socket.setsockopt(zmq.IPV6, "[" in self.address)
        socket.connect(self.address)
        for call in list(self._calls.values()):
            call.sent_s = 0.0
        return socket

    def _take_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _wait(self, socket: zmq.Socket[bytes], until: float) -> bool:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        left_ms = max(0, min(int((until - time.monotonic()) * 1000) + 1, 1000))
        return any(ready is socket for ready, _ in poller.poll(left_ms))

    def _send_status(self, socket: zmq.Socket[bytes]) -> None:
        with self._changed:
            status, said = self._status, self._said
        if status is not None:
            # the number of the statement in its token: the answer then shows what the coordinator has heard
            self._send(socket, encode(self.amend(status), b"say" + said.to_bytes(8, "big")))

    def _send_calls(self, socket: zmq.Socket[bytes], now: float) -> None:
        with self._changed:
            due = [call for call in self._calls.values() if not call.done and now - call.sent_s > _RESEND_S]
        for call in due:
            call.sent_s = now
            self._send(socket, call.data)

    def _send(self, socket: zmq.Socket[bytes], data: bytes) -> None:
        if self._unanswered_s is None:
            self._unanswered_s = time.monotonic()
        with contextlib.suppress(zmq.Again):  # nobody is there and the queue is full: the next beat says it all again
            socket.send(data, zmq.NOBLOCK)

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        """Take in all that has come."""
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                reply, token = decode_reply(frames[-1])
            except BadMessage:
                continue
            self._answered_s, self._unanswered_s, self._renewals = time.monotonic(), None, 0
            if isinstance(reply, WorkerWord | AgentWord):
                self._take_word(reply, token)
            else:
                self._take_answer(reply, token)

    def _take_word(self, word: Word, token: bytes) -> None:
        if word != self._word:
            self.on_word(word)
        with self._changed:
            if word != self._word:
                self._word = word
                os.eventfd_write(self._news, 1)
            if token.startswith(b"say"):
                self._heard = max(self._heard, int.from_bytes(token[3:], "big"))
            self._changed.notify_all()

    def _take_answer(self, answer: Any, token: bytes) -> None:
        with self._changed:
            call = self._calls.get(token)
            if call is not None and not call.done:
                call.answer, call.done = answer, True
                self._changed.notify_all()
