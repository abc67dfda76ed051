"""All that one server holds: its shard, and (used on the first server only) the directory and the rounds.

A *command* is what a client asks for: an operation of the shard, or a `Call` for directory and rounds. Carried out in
the same order it gives the same state everywhere, and what changes nothing need not be sent to anybody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import ConfigError
from shoal.store.answers import Answer
from shoal.store.directory import Directory
from shoal.store.operations import Change, Commit, Lease, Operation, Push, PushPull, Set, Stage
from shoal.store.packing import PackingError, pack, unpack
from shoal.store.rounds import Rounds
from shoal.store.shard import Shard

Arrays = dict[str, npt.NDArray[Any]]
MOST_NAMES = 256  # of slices in a head: what speaks of more has one more array


@dataclass(frozen=True)
class Call:
    """A question or a statement for directory and rounds, in plain values. Statements may be repeated at will."""

    what: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        return self.what in ("register", "enrol", "tick", "leave")


Command = Operation | Call
Reply = Answer | dict[str, Any]


def pack_command(command: Command) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """As the fields of a message's head, and arrays."""
    if isinstance(command, Call):
        return _spill(
            {"call": command.what, "with": dict(command.arguments)}, [], len(command.arguments.get("batch", ()))
        )
    data, arrays = pack(command)
    names = sum(len(getattr(command, name, ())) for name in ("updates", "wanted", "holdings"))
    return _spill({"do": data}, arrays, names)


def unpack_command(head: Mapping[str, Any], arrays: list[npt.NDArray[Any]]) -> Command:
    """Raises `PackingError` for what is no command. Updates that travel coded are decoded."""
    head, arrays = _gather(head, arrays)
    if "call" in head:
        what, arguments = head["call"], head.get("with")
        if not isinstance(what, str) or not isinstance(arguments, dict):
            raise PackingError("this is no call: it has no name or no arguments")
        return Call(what, arguments)
    operation = unpack(head.get("do"), arrays)
    if not isinstance(operation, Operation):
        raise PackingError(f"this is no operation: {type(operation).__name__}")
    if isinstance(operation, Set | Push | PushPull | Stage) and any(one.coding for one in operation.updates):
        from shoal.store.decoding import decoded  # torch is slow to load, and most stores never need it

        return decoded(operation)
    return operation


class State:
    """Shard, directory and rounds: changed, dumped and loaded together. For one thread."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.directory = Directory()
        self.rounds = Rounds()

    def changes(self, command: Command) -> bool:
        """Whether this has to reach every copy."""
        return isinstance(command, Change) or (isinstance(command, Call) and command.changes)

    def awaited(self, command: Command) -> tuple[str, ...]:
        """For whom this must wait before it can be carried out; nobody: it can be now."""
        if isinstance(command, Lease):
            wait = self.shard.would_wait(command)
            return wait.workers if wait is not None else ()
        if isinstance(command, Commit) and command.number is not None and command.number > self.shard.commits + 1:
            return (f"commit {self.shard.commits + 1}",)
        if isinstance(command, Call) and command.what == "begin":
            return self.rounds.behind(str(command.arguments.get("worker")))
        return ()

    def do(self, command: Command) -> Reply:
        """Carry out one command. Raises `ConfigError` for a call that cannot be granted; nothing is changed then."""
        return self._call(command) if isinstance(command, Call) else self.shard.do(command)

    def _call(self, call: Call) -> dict[str, Any]:
        given = call.arguments
        try:
            if call.what == "register":
                self.directory.register(str(given["placement"]), list(given["batch"]))
                return self.directory.dump()
            if call.what == "directory":
                return self.directory.dump()
            if call.what == "enrol":
                self.rounds.enrol(str(given["consistency"]), [str(one) for one in given["workers"]])
            elif call.what == "tick":
                self.rounds.tick(str(given["worker"]), int(given["clock"]))
            elif call.what == "leave":
                self.rounds.leave(str(given["worker"]))
            elif call.what == "begin":
                return {"behind": list(self.rounds.behind(str(given["worker"])))}
            elif call.what != "rounds":
                raise ConfigError(f"a server of the store knows no call {call.what!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the call {call.what!r} cannot be understood: {error!r}") from None
        return self.rounds.dump()

    def dump(self, copy: bool = True) -> tuple[dict[str, Any], Arrays]:
        """Plain data and arrays by name; without `copy`, arrays are views until the next change."""
        meta, arrays = self.shard.dump(copy)
        return {"shard": meta, "directory": self.directory.dump(), "rounds": self.rounds.dump()}, arrays

    @classmethod
    def load(cls, meta: Mapping[str, Any], arrays: Arrays, copy: bool = True) -> State:
        state = cls()
        state.shard = Shard.load(meta["shard"], arrays, copy)
        state.directory = Directory.load(meta["directory"])
        state.rounds = Rounds.load(meta["rounds"])
        return state

    def digest(self) -> str:
        """Equal for two copies that are in step."""
        rest = json.dumps([self.directory.dump(), self.rounds.dump()], sort_keys=True)
        return f"{self.shard.digest()} {rest}"


def pack_reply(reply: Reply) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """As the fields of a message's head, and arrays."""
    if isinstance(reply, dict):
        return _spill({"plain": reply}, [], sum(len(batch) for batch in reply.get("batches", ())))
    data, arrays = pack(reply)
    return _spill({"answer": data}, arrays, len(getattr(reply, "found", ())) + len(getattr(reply, "commits", ())))


def unpack_reply(head: Mapping[str, Any], arrays: list[npt.NDArray[Any]]) -> Any:
    """The answer, or the plain values of a call."""
    head, arrays = _gather(head, arrays)
    return head["plain"] if "plain" in head else unpack(head.get("answer"), arrays)


def _spill(
    fields: dict[str, Any], arrays: list[npt.NDArray[Any]], names: int
) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """Heads are small. What speaks of many slices travels as one more array, the last: the others keep their places."""
    if names <= MOST_NAMES:
        return fields, arrays
    return {"spilled": True}, [*arrays, as_bytes(fields)]


def _gather(
    head: Mapping[str, Any], arrays: list[npt.NDArray[Any]]
) -> tuple[Mapping[str, Any], list[npt.NDArray[Any]]]:
    if not head.get("spilled"):
        return head, arrays
    try:
        return {**head, **from_bytes(arrays[-1])}, arrays[:-1]
    except (ValueError, IndexError) as error:
        raise PackingError(f"what was spilled cannot be read: {error}") from error


def as_bytes(data: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
    """Plain data of any size, to travel as an array."""
    return np.frombuffer(json.dumps(data).encode(), dtype=np.uint8)


def from_bytes(data: npt.NDArray[Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data.tobytes())
    return found
