"""What each client has been answered, so that a repeated request is answered and not carried out again."""

from __future__ import annotations

from typing import Any, Self

from shoal.store.answers import Answer, Refused
from shoal.store.operations import Change
from shoal.store.packing import pack, unpack

WINDOW = 64  # answers kept by client: it may have as many changes under way
CLIENTS = 4096  # the one that has been silent longest is forgotten first


class Answered:
    """The last answers by client. Answers hold no arrays."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[int, Answer]] = {}  # the client that spoke last stands last
        self._floor: dict[str, int] = {}  # answers up to here are thrown away

    def find(self, change: Change, version: int) -> Answer | None:
        """The answer that `change` was given, None if it is new; a refusal if that has been thrown away."""
        known = self._answers.get(change.client, {}).get(change.sequence)
        if known is None and change.sequence <= (floor := self._floor.get(change.client, 0)):
            detail = f"change {change.sequence} of {change.client}: answers up to {floor} have been thrown away"
            return Refused(version, "forgotten", detail)
        return known

    def keep(self, change: Change, answer: Answer) -> None:
        """Remember the answer to `change`."""
        answers = self._answers.pop(change.client, {})
        self._answers[change.client] = answers
        answers[change.sequence] = answer
        if len(answers) > WINDOW:
            oldest = min(answers)
            del answers[oldest]
            self._floor[change.client] = oldest
        if len(self._answers) > CLIENTS:
            self.dismiss(next(iter(self._answers)))

    def dismiss(self, client: str) -> None:
        """Forget a client."""
        self._answers.pop(client, None)
        self._floor.pop(client, None)

    def dump(self) -> list[Any]:
        """All of it, as data that JSON and msgpack can hold."""
        return [
            [client, self._floor.get(client, 0), [[number, pack(one)[0]] for number, one in sorted(answers.items())]]
            for client, answers in self._answers.items()
        ]

    @classmethod
    def load(cls, data: list[Any]) -> Self:
        """What was dumped."""
        answered = cls()
        for client, floor, answers in data:
            answered._answers[client] = {number: unpack(one, []) for number, one in answers}
            if floor:
                answered._floor[client] = floor
        return answered
