"""The examination of several hosts: who is there, what their clocks say, how fast every pair is."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.core.errors import UserError
from shoal.launch.doctor.deadline import Deadline
from shoal.launch.doctor.exchange import Exchange
from shoal.launch.doctor.facts import HostFacts
from shoal.launch.doctor.findings import (
    Crossing,
    Finding,
    judge_agreement,
    judge_clocks,
    judge_crossings,
    judge_host,
    rounds,
)
from shoal.launch.doctor.link import LIMIT_S

_CLOCK_ASKS = 5
_CLOCK_S = 0.5
_SELF_S = 5.0  # for this host to be there, too
_ROLL_S = 3.0  # for all hosts to say that they are there
_ANSWER_S = LIMIT_S + 1.0  # beyond the time that a measurement takes by itself
_LINKS_S = 5.0  # for all pairs, as long as each gets the least time
_MOST_S, _LEAST_S = 0.3, 0.1  # one measurement
_REST_S = 6.0  # left for clocks and links when facts are waited for
_FAIR_S = 1.0  # whoever is asked has so long at least: with less left, nobody is
_LOOK_S = 0.1
_END_S = 1.0  # to take the last word, when all time is over
NEVER_CAME = "did not come, or did not say what it is"
_NO_TIME = "no time was left"
_FEWER = "examine fewer hosts at once, or look what makes them slow"


@dataclass
class _Host:
    number: int
    facts: HostFacts
    port: int
    host_id: str
    orders: itertools.count[int] = field(default_factory=itertools.count)
    silent: bool = False


class Examiner:
    """Examines the hosts that come to the exchange, this one among them, as host number 1. All of it is over at the
    `deadline`, whoever does not answer; waiting for hosts to come is not counted."""

    def __init__(self, exchange: Exchange, deadline: Deadline | None = None) -> None:
        self._exchange = exchange
        self._deadline = deadline if deadline is not None else Deadline()
        self._token = secrets.token_hex(32)
        exchange.put("token", self._token)

    def examine(
        self, names: Sequence[str], wait_s: float, absent: Callable[[], dict[str, str]] = dict
    ) -> tuple[list[HostFacts], list[Finding]]:
        """Wait for as many hosts as there are `names`, at most for `wait_s`, then examine all that have come.

        `names`: as they will call themselves; "" stands for whoever comes. `absent()` gives the names of those that are
        known not to come any more, with the reason. Who has not answered when the time is over is named, and so is
        what was left out for want of time."""
        hosts, findings = self._gather(names, wait_s, absent)
        findings += [one for host in hosts for one in judge_host(host.facts)]
        findings += judge_agreement([host.facts for host in hosts])
        self._call_the_roll(hosts)
        skews = {host.facts.host: self._skew(host) for host in hosts[1:] if not host.silent}
        findings += judge_clocks({name: skew for name, skew in skews.items() if skew is not None})
        silent = {host.facts.host for host in hosts if host.silent}
        findings += [
            Finding(name, "clock", "warn", f"not asked: {_NO_TIME}", _FEWER)
            for name, skew in skews.items()
            if skew is None and name not in silent
        ]
        findings += self._links([host for host in hosts if not host.silent])
        findings += [
            Finding(
                host.facts.host, "answers", "bad", "stopped to answer", "is it overloaded, or its network unsteady?"
            )
            for host in hosts
            if host.silent
        ]
        bad = sum(one.verdict == "bad" for one in findings)
        for host in hosts:
            self._order(host, {"kind": "end", "words": f"{len(hosts)} hosts were examined, {bad} bad findings"})
        return [host.facts for host in hosts], findings

    def _call_the_roll(self, hosts: Sequence[_Host]) -> None:
        """Find out, of all at once, who answers at all."""
        orders = [self._order(host, {"kind": "clock"}) for host in hosts]
        self._answers(list(zip(hosts, orders, strict=True)), _ROLL_S)

    def _gather(
        self, names: Sequence[str], wait_s: float, absent: Callable[[], dict[str, str]]
    ) -> tuple[list[_Host], list[Finding]]:
        arrived = self._arrived(len(names), wait_s, absent)
        hosts: list[_Host] = []
        expected = list(names)
        for number in range(1, arrived + 1):
            if self._deadline.left_s() < _ROLL_S:  # looking takes no time, unless the exchange itself is dead
                break
            data = self._exchange.get(f"{number}/facts", max(0.0, self._deadline.left_s() - _REST_S))
            if data is None:
                continue
            host = _Host(number, HostFacts.from_json(data["facts"]), int(data["port"]), str(data["id"]))
            if any(host.host_id == other.host_id for other in hosts):
                self._order(host, {"kind": "end", "words": "this host is examined already"})
                expected.remove(host.facts.host if host.facts.host in expected else "")
            else:
                hosts.append(_with_own_name(host, hosts))
        missing = [name for name in expected if name not in {host.facts.host for host in hosts}]
        return hosts, self._missing(missing, len(expected) - len(hosts), absent())

    def _arrived(self, expected: int, wait_s: float, absent: Callable[[], dict[str, str]]) -> int:
        """How many have come, once all have that will, or the time is up. This host always comes."""
        begun_s = time.monotonic()
        while True:
            arrived = self._exchange.arrivals()
            waited_s = time.monotonic() - begun_s
            if arrived >= expected - len(absent()) or waited_s > (wait_s if arrived else max(wait_s, _SELF_S)):
                self._deadline.extend(waited_s)
                return arrived
            time.sleep(_LOOK_S)

    @staticmethod
    def _missing(missing: Sequence[str], how_many: int, absent: dict[str, str]) -> list[Finding]:
        remedy = "look there: can it reach this host and port, is the key file the same, is Shoal installed?"
        named = [name for name in missing if name]
        findings = [Finding(name, "answers", "bad", absent.get(name, NEVER_CAME), remedy) for name in named]
        if how_many > len(named):
            findings.append(Finding(f"{how_many - len(named)} more", "answers", "bad", NEVER_CAME, remedy))
        return findings

    def _skew(self, host: _Host) -> tuple[float, float] | None:
        """How far its clock is ahead, and within what: half the way there and back of the quickest answer. None where
        it did not answer, or was not asked for want of time."""
        best: tuple[float, float] | None = None
        until = time.monotonic() + _CLOCK_S
        for _ in range(_CLOCK_ASKS):
            if self._deadline.left_s() < _FAIR_S:
                break
            begun, begun_s = time.time(), time.monotonic()
            answer = self._ask(host, {"kind": "clock"}, _ROLL_S)
            error_s = (time.monotonic() - begun_s) / 2
            if answer is None:
                return None
            if best is None or error_s < best[1]:
                best = float(answer["time"]) - (begun + error_s), error_s
            if time.monotonic() > until:
                break
        return best

    def _links(self, hosts: Sequence[_Host]) -> list[Finding]:
        """Every link, both ways; where there are more hosts than there is time, what was measured has to do."""
        plan = rounds(len(hosts))
        seconds = min(_MOST_S, max(_LEAST_S, _LINKS_S / max(1, 2 * len(plan)))) if plan else 0.0
        crossings: list[Crossing] = []
        left_out: Counter[str] = Counter()
        for pairs in plan:
            for ways in (pairs, [(b, a) for a, b in pairs]):
                if self._deadline.left_s() < seconds + _FAIR_S:
                    left_out.update(hosts[a].facts.host for a, _ in ways)
                else:
                    crossings += self._measure([(hosts[a], hosts[b]) for a, b in ways], seconds)
        return [
            *judge_crossings(crossings),
            *(
                Finding(name, "link", "warn", f"{count} of {len(hosts) - 1} not measured: {_NO_TIME}", _FEWER)
                for name, count in left_out.items()
            ),
        ]

    def _measure(self, ways: Sequence[tuple[_Host, _Host]], seconds: float) -> list[Crossing]:
        """All at once: no host is in two of them."""
        orders = []
        for source, target in ways:
            order = {"kind": "measure", "address": target.facts.address, "port": target.port, "seconds": seconds}
            orders.append((source, self._order(source, order)))
        crossings = []
        for (source, target), answer in zip(ways, self._answers(orders, _ANSWER_S + seconds), strict=True):
            names = source.facts.host, target.facts.host
            if answer is None:
                crossings.append(Crossing(*names, problem=f"{names[0]} stopped to answer"))
            elif "problem" in answer:
                crossings.append(Crossing(*names, problem=str(answer["problem"])))
            else:
                crossings.append(Crossing(*names, float(answer["bytes_per_s"]), float(answer["latency_s"])))
        return crossings

    def _ask(self, host: _Host, order: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        return self._answers([(host, self._order(host, order))], timeout_s)[0]

    def _order(self, host: _Host, order: dict[str, Any]) -> int:
        number = next(host.orders)
        self._exchange.put(f"{host.number}/order/{number}", order, max(_END_S, self._deadline.left_s(5.0)))
        return number

    def _answers(self, orders: Sequence[tuple[_Host, int]], timeout_s: float) -> list[dict[str, Any] | None]:
        """What each host answers to its order; all of them have `timeout_s` together."""
        common = self._deadline.part(timeout_s)
        return [self._answer(host, number, common.left_s()) for host, number in orders]

    def _answer(self, host: _Host, number: int, timeout_s: float) -> dict[str, Any] | None:
        answer = None if host.silent else self._exchange.get(f"{host.number}/answer/{number}", timeout_s)
        host.silent |= answer is None
        if answer is not None and not isinstance(answer, dict):
            raise UserError(f"{host.facts.host} runs another version of Shoal: install the same on all hosts")
        return answer


def _with_own_name(host: _Host, others: Sequence[_Host]) -> _Host:
    """Two hosts that call themselves the same are told apart by their addresses."""
    if any(other.facts.host == host.facts.host for other in others):
        host.facts = replace(host.facts, host=f"{host.facts.host} ({host.facts.address})")
    return host
