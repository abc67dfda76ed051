"""The coordinator: one loop that hears members, keeps membership and store, and tells each member its word.

It is never on the path of a step. Who does not prove to have the run's key does not get a connection; what is no
message of ours is dropped and counted. Whatever is kept is bounded.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.elastic.door import Door
from shoal.elastic.journal import JOURNAL_NAME, Journal
from shoal.elastic.keyvalues import KeyValues
from shoal.elastic.membership import Membership
from shoal.elastic.messages import (
    Ask,
    BadMessage,
    Message,
    Refused,
    Request,
    Scale,
    SetJournal,
    StoreGet,
    Word,
    decode,
    encode_reply,
)
from shoal.elastic.process import CoordinatorSpec
from shoal.elastic.status import AgentStatus, WorkerStatus, WorkerWord

_TICKS_PER_LEASE = 12
_MESSAGES_AT_ONCE = 256
_MOST_PEERS = 8192
_MOST_WAITS = 4096
_MOST_ANSWERS = 4096
_GRUMBLE_S = 60.0


@dataclass
class _Peer:
    """Where a member was heard last, and what it was told."""

    identity: bytes
    told: Word | None = None


@dataclass
class _Wait:
    identity: bytes
    call: StoreGet
    until_s: float


Name = tuple[type, str]  # worker or agent, and its key


class Coordinator:
    """Listens as soon as it is made; `run` serves until `stop`. Use it as a context."""

    def __init__(self, spec: CoordinatorSpec, log: Callable[[str], None] | None = None) -> None:
        self.malformed = 0
        self._spec = spec
        self._log = log or (lambda line: print(line, file=sys.stderr, flush=True))
        self._membership, self._values = Membership(spec.terms), KeyValues()
        self._journal: Journal | None = None
        self._written: tuple[int, ...] | None = None
        self._told: tuple[int, ...] | None = None
        self._peers: OrderedDict[Name, _Peer] = OrderedDict()
        self._waits: OrderedDict[bytes, _Wait] = OrderedDict()
        self._answers: OrderedDict[bytes, object] = OrderedDict()
        self._grumbled_s = {"malformed": float("-inf"), "journal": float("-inf")}
        self._stopping = False
        if spec.journal is not None:
            self._open_journal(Path(spec.journal))
        self._door = Door(spec.host, spec.port, spec.keys)
        self.address = self._door.address

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._door.close()
        if self._journal is not None:
            self._journal.close()

    def stop(self) -> None:
        """Have `run` return soon. From any thread."""
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped."""
        tick_s = self._spec.terms.lease_s / _TICKS_PER_LEASE
        ticked_s = time.monotonic()
        self._membership.tick(ticked_s)  # from now on it can tell for how long it did not run
        while not self._stopping:
            now = time.monotonic()
            until = min([ticked_s + tick_s, *(wait.until_s for wait in self._waits.values())])
            heard = self._hear(until - now)
            now = time.monotonic()
            if now - ticked_s >= tick_s:  # after having heard: connections are read in turn, so everyone has had one
                self._membership.tick(now)
                ticked_s = now
            self._publish()
            for identity, token, message in heard:
                self._answer(identity, token, message, now)
            self._end_waits(now)

    def _hear(self, timeout_s: float) -> list[tuple[bytes, bytes, Message]]:
        """Take in what has come, and note what members say of themselves."""
        heard = []
        for identity, data in self._door.receive(timeout_s, _MESSAGES_AT_ONCE):
            try:
                message, token = decode(data)
            except BadMessage:
                self.malformed += 1
                self._grumble("malformed", f"{self.malformed} malformed messages dropped so far")
                continue
            now = time.monotonic()
            if isinstance(message, WorkerStatus):
                self._membership.on_worker(message, now)
                self._note_peer((WorkerStatus, message.key), identity)
            elif isinstance(message, AgentStatus):
                self._membership.on_agent(message, now)
                self._note_peer((AgentStatus, message.agent), identity)
            elif isinstance(message, Scale):
                self._membership.on_scale(message.workers, now)
            heard.append((identity, token, message))
        return heard

    def _note_peer(self, name: Name, identity: bytes) -> None:
        peer = self._peers.setdefault(name, _Peer(identity))
        self._peers.move_to_end(name)
        if peer.identity != identity:
            peer.identity, peer.told = identity, None
        if len(self._peers) > _MOST_PEERS:
            self._peers.popitem(last=False)

    def _word(self, name: Name) -> Word:
        kind, key = name
        return self._membership.word_for_worker(key) if kind is WorkerStatus else self._membership.word_for_agent(key)

    def _publish(self) -> None:
        """Write down what has changed, then tell it to whom it concerns."""
        for notice in self._membership.notices:
            self._log(str(notice))
        self._membership.notices.clear()
        self._write_journal()
        if self._told == self._membership.revision:
            return
        self._told = self._membership.revision
        self._values.drop_old(self._membership.view.number)
        for name, peer in self._peers.items():
            word = self._word(name)
            if peer.told is None or not _same(word, peer.told):
                peer.told = word
                self._door.send(peer.identity, encode_reply(word, b""))

    def _answer(self, identity: bytes, token: bytes, message: Message, now: float) -> None:
        if isinstance(message, WorkerStatus | AgentStatus):
            name = (type(message), message.key if isinstance(message, WorkerStatus) else message.agent)
            word = self._word(name)
            self._door.send(identity, encode_reply(word, token))
            if name in self._peers:
                self._peers[name].told = word
        elif isinstance(message, StoreGet) and message.wait_s and not self._there(message):
            self._waits[token] = _Wait(identity, message, now + message.wait_s)
            if len(self._waits) > _MOST_WAITS:
                self._end_wait(*self._waits.popitem(last=False))
        else:
            self._door.send(identity, encode_reply(self._once(token, message), token))

    def _once(self, token: bytes, request: Request) -> object:
        """Carry out a request, unless it is the repetition of one that was carried out."""
        if token not in self._answers:
            self._answers[token] = self._carry_out(request)
            if len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
            self._write_journal()
        return self._answers[token]

    def _carry_out(self, request: Request) -> object:
        if isinstance(request, Scale | Ask):
            return {**self._membership.report(), "malformed": self.malformed}
        if isinstance(request, SetJournal):
            return self._set_journal(request)
        return self._values.do(request, self._membership.view.number)

    # gets that wait

    def _there(self, call: StoreGet) -> bool:
        return all(key in self._values.values for key in call.keys)

    def _end_waits(self, now: float) -> None:
        for token, wait in list(self._waits.items()):
            if wait.until_s <= now or self._there(wait.call):
                del self._waits[token]
                self._end_wait(token, wait)

    def _end_wait(self, token: bytes, wait: _Wait) -> None:
        values = self._values.do(wait.call, self._membership.view.number)
        self._door.send(wait.identity, encode_reply(values, token))

    # the journal

    def _set_journal(self, request: SetJournal) -> object:
        directory = Path(request.directory)
        if self._journal is not None:
            return False
        if not directory.is_absolute() or not directory.is_dir():
            return Refused(f"{request.directory} is no directory on the coordinator's host")
        # what was heard until now is newer than any file: nothing is read
        self._journal = Journal(directory / JOURNAL_NAME, self._spec.keys.server_public)
        self._written = None
        return True

    def _open_journal(self, path: Path) -> None:
        """Go on from what an earlier coordinator of this run has written down."""
        self._journal = Journal(path, self._spec.keys.server_public)
        if self._journal.state is not None:
            self._membership = Membership.from_json(self._journal.state, self._spec.terms, time.monotonic())
            for key, value in self._journal.values.items():
                self._values.put(key, value)
            self._log(f"restarted in view {self._membership.view.number}")

    def _write_journal(self) -> None:
        journal, revision, values = self._journal, self._membership.revision, self._values
        if journal is None or (self._written == revision and not values.changed):
            values.changed.clear()
            return
        try:
            if journal.whole:
                journal.write(self._membership.to_json(), dict(values.values))
            else:
                state = self._membership.to_json() if self._written != revision else None
                journal.write(state, {key: values.values.get(key) for key in values.changed})
            self._written = revision
            values.changed.clear()
        except OSError as error:  # training does not depend on it; only a crash of ours would cost a pause then
            self._grumble("journal", f"cannot write the journal: {error}")

    def _grumble(self, what: str, line: str) -> None:
        """Log, but not more than once a minute for each kind of trouble."""
        if time.monotonic() - self._grumbled_s[what] > _GRUMBLE_S:
            self._grumbled_s[what] = time.monotonic()
            self._log(line)


def _same(word: Word, told: Word) -> bool:
    """Whether nothing has changed that a member must hear at once: for whom one waits can wait for the next beat."""
    if isinstance(word, WorkerWord) and isinstance(told, WorkerWord):
        return replace(word, awaited=()) == replace(told, awaited=())
    return word == told
