"""Workers that keep a store among themselves: each has a copy of everything, and reads its own.

Every post has an owner, a worker who decides the order of its changes. A change goes to the owner and from there to
all others, in that order, and is acknowledged when all have it: so copies never differ but for what is on its way, and
whoever has been answered finds it in every copy. A worker that is lost is left out by the others; it cannot read on
from a copy that is no longer kept in step.
"""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future, wait
from typing import Any

from shoal.comm.bulk import BulkClient, BulkServer, Message, Peer, Reply
from shoal.comm.keys import ClientKeys, RunKeys
from shoal.core.errors import ConfigError, PeerLost
from shoal.store.client import Link
from shoal.store.description import Encrypt, FleetDescription
from shoal.store.errors import WorkersBehind
from shoal.store.feed import Feed, Origin, Reactions
from shoal.store.follower import Follower
from shoal.store.heads import FEED, check_head
from shoal.store.leader import Leader
from shoal.store.modes.base import Membership, Mode
from shoal.store.packing import PackingError
from shoal.store.session import Session
from shoal.store.state import State, pack_reply, unpack_command
from shoal.store.turned_away import NotPrimary, OutOfStep, TurnedAway

_TERM = _GENERATION = 1
_AGAIN_S = 0.02
_SIGN_S = 1.0
_FAREWELL_S = 5.0
_FOR_EVER_S = float("inf")


class PeerServer:
    """One worker's side: it owns post `worker`, if it is one of the first `posts`, and copies the others."""

    def __init__(self, worker: int, workers: int, posts: int, keys: RunKeys, listen: str, encrypt: Encrypt) -> None:
        self.worker, self.workers = worker, workers
        self._keys, self._encrypt = keys.client(), encrypt
        self._met: dict[int, str] = {}
        self._followers = {post: Follower(_TERM, _GENERATION, fresh=True) for post in range(posts) if post != worker}
        self._leader: Leader | None = None
        self._serving = False  # not before everything that is done reaches everybody
        self._closing = False
        self.bulk = BulkServer(listen, keys, self._handle, encrypt=encrypt)
        self.address = self.bulk.addresses[0]
        self._met[worker] = self.address
        if worker < posts:
            self._leader = Leader(State(), 0, _GENERATION, _FOR_EVER_S, self.bulk, lambda error: None)

    def feed_others(self, addresses: list[str], ready: threading.Event) -> None:
        """As an owner: send everything to all others from now on. In the loop's thread."""
        leader = self._leader
        if leader is not None:
            for number, address in enumerate(addresses):
                if number != self.worker:
                    name = f"worker {number}"
                    leader.add(name, self._feed(leader, name, address), load=False)
                    leader.gate.count(name)
            self._sign()
        self._serving = True
        ready.set()

    def _feed(self, leader: Leader, name: str, address: str) -> Feed:
        reactions = Reactions(
            reached=lambda position, sent_s: leader.gate.acknowledged(name, position, sent_s),
            lost=lambda error: leader.drop(name),  # the others stay in step without it
            old=lambda: None,
        )
        origin = Origin(self.worker, _TERM, _GENERATION)
        return Feed(name, address, self._keys, origin, self.bulk, reactions, encrypt=self._encrypt)

    def _sign(self) -> None:
        if self._leader is not None and not self._closing:
            self._leader.renew()
            self.bulk.later(_SIGN_S, self._sign)

    def _handle(self, peer: Peer, message: Message, reply: Reply) -> None:
        try:
            self._dispatch(peer, message, reply)
        except TurnedAway as no:
            reply.fail(no)

    def _dispatch(self, peer: Peer, message: Message, reply: Reply) -> None:
        head = message.head
        kind = check_head(head)
        if kind == "ask":
            self._serve(peer, message, reply)
        elif kind == "who":
            reply(Message({"serving": self._serving, "term": _TERM, "generation": _GENERATION, "fleet": {}}))
        elif kind == "meet":
            if not 0 <= head["worker"] < self.workers:
                raise ConfigError(f"there is no worker {head['worker']}: there are {self.workers}, from 0")
            known = self._met.setdefault(head["worker"], head["address"])
            if known != head["address"]:
                raise ConfigError(f"there are two workers of the number {head['worker']}: give each its own")
            met = [self._met.get(number) for number in range(self.workers)]
            reply(Message({"met": met, "workers": self.workers}))
        elif kind in FEED and head.get("p") in self._followers:
            self._followers[head["p"]].take(peer, message, reply)
        else:
            raise PackingError(f"a worker's copy of the store knows no {kind!r}")

    def _serve(self, peer: Peer, message: Message, reply: Reply) -> None:
        head = message.head
        if not self._serving:
            raise NotPrimary("not everybody is here yet")
        post = head.get("p")
        if not head.get("copy"):
            if self._leader is None or post != self.worker:
                raise PackingError(f"worker {self.worker} does not own post {post}")
            self._leader.serve(peer, message, reply)
            return
        follower = self._followers.get(post) if post is not None else None
        state = self._leader.state if post == self.worker and self._leader is not None else None
        if follower is not None:
            state = follower.state
            if not follower.fed:
                raise NotPrimary("the owner has not sent anything yet")
            if not follower.in_step:
                raise OutOfStep(
                    f"worker {post} is gone, who kept the order of changes: this copy is not in step any more"
                )
        if state is None:
            raise PackingError(f"there is no post {post}")
        command = unpack_command(head, list(message.arrays))
        if state.changes(command):
            raise PackingError("a copy is only read")
        fields, arrays = pack_reply(state.do(command))
        reply(Message(fields, arrays, freeze=True))

    def close(self) -> None:
        """Tell the others that they have everything, and end."""
        self._closing = True
        leader = self._leader
        if leader is not None:
            said: Future[list[Future[Message]]] = Future()
            self.bulk.call(lambda: said.set_result(leader.farewell()))
            wait(said.result(_FAREWELL_S), _FAREWELL_S)
        self.bulk.close()
        if leader is not None:
            leader.close()


class PeerMode(Mode):
    """`posts` of the workers are owners. Ready when all workers are there."""

    def __init__(self, membership: Membership, mode: str, posts: int | None) -> None:
        worker, workers, keys = membership.worker, membership.workers, membership.run_keys
        if worker is None or workers is None or keys is None:
            raise ConfigError(f"in mode {mode!r} every worker must say which one it is: give worker and workers")
        self.worker, self.posts, self._mode = worker, posts or workers, mode
        listen = membership.address if worker == 0 else f"{_own_address(membership.address)}:0"
        self._server = PeerServer(worker, workers, self.posts, keys, listen, membership.encrypt)
        self._session: Session | None = None
        try:
            addresses = self._meet(membership, keys.client(), workers)
            ready = threading.Event()
            self._server.bulk.call(lambda: self._server.feed_others(addresses, ready))
            ready.wait(membership.deadline_s)
            described = FleetDescription(tuple((address,) for address in addresses), membership.encrypt)
            self._session = Session(lambda: described, keys.client(), membership.name, membership.encrypt)
            self.links = [
                Link(self._session, number, [address], f"worker {number}", lasting=False)
                for number, address in enumerate(addresses)
            ]
        except BaseException:
            self.close()
            raise

    def _meet(self, membership: Membership, keys: ClientKeys, workers: int) -> list[str]:
        """Tell worker 0 where we are, until it knows where everybody is."""
        began_s = time.monotonic()
        until_s = began_s + membership.deadline_s
        message = Message({"k": "meet", "worker": self.worker, "address": self._server.address})
        met: list[str | None] = [None] * workers
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                missing = tuple(str(number) for number, one in enumerate(met) if one is None and number != self.worker)
                raise WorkersBehind(
                    f"the meeting of {workers} workers at {membership.address}", missing, membership.deadline_s
                )
            try:
                client = BulkClient(
                    membership.address, keys, name=membership.name, server_name="worker 0", deadline_s=left_s,
                    encrypt=membership.encrypt,
                )  # fmt: skip
            except PeerLost:
                time.sleep(_AGAIN_S)  # worker 0 is not there yet
                continue
            try:
                while None in met and time.monotonic() < until_s:
                    head = client.request(message, max(0.1, until_s - time.monotonic())).head
                    if head["workers"] != workers:
                        raise ConfigError(f"worker 0 was told of {head['workers']} workers, this one of {workers}")
                    met = head["met"]
                    time.sleep(_AGAIN_S if None in met else 0.0)
                if None not in met:
                    return [address for address in met if address is not None]
            except PeerLost:
                continue
            finally:
                client.close()

    def reader(self, post: int, worker: int | None) -> tuple[Link, dict[str, Any]]:
        whose = self.worker if worker is None else worker
        if not 0 <= whose < len(self.links):
            raise ConfigError(f"there is no worker {whose}: they are numbered from 0 to {len(self.links) - 1}")
        return self.links[whose], {"p": post, "copy": True}

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._server.close()


def _own_address(meeting: str) -> str:
    """The address of this host on the way to where workers meet."""
    host, _, port = meeting.removeprefix("tcp://").rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))  # sends nothing
        own: str = probe.getsockname()[0]
    return f"[{own}]" if ":" in own else own
