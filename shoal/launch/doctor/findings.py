"""What the doctor makes of the facts: a verdict on each, and what to do about it. Pure functions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shoal.launch.doctor.facts import TORCH_S, HostFacts

Verdict = Literal["ok", "warn", "bad"]
_ORDER: tuple[Verdict, ...] = ("ok", "warn", "bad")

GIB = 1 << 30
MIB = 1 << 20
_OLDEST_PYTHON = (3, 11)
_MEMORY = (2 * GIB, GIB // 2)  # below the first: a warning; below the second: bad
_SHM = (512 * MIB, 60 * MIB)
_OPEN_FILES = (1024, 256)
_FREE_PORTS = (1000, 50)
_SKEW_S = (1.0, 60.0)  # above
_LATENCY_S = (0.005, 0.2)  # above
_RATE = (60e6, 1e6)  # bytes a second, below: 480 Mbit/s is what ordinary Ethernet carries
_OUT_OF_LINE = 3.0  # so many times slower than what others have
_SLOW_IMPORT_S = 8.0


@dataclass(frozen=True)
class Finding:
    """One row of the doctor's table. `host` may be a pair, ``a -> b``. `remedy` is empty where all is well."""

    host: str
    check: str
    verdict: Verdict
    value: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Crossing:
    """What was measured from one host to another; `problem` says why nothing was."""

    source: str
    target: str
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    problem: str = ""


def worst(findings: Iterable[Finding]) -> Verdict:
    return max((one.verdict for one in findings), key=_ORDER.index, default="ok")


def bad_hosts(findings: Iterable[Finding]) -> list[str]:
    """The hosts that something bad was found of, in order; of a pair, neither is named unless the rest show which."""
    return list(dict.fromkeys(one.host for one in findings if one.verdict == "bad" and " -> " not in one.host))


def judge_host(facts: HostFacts) -> list[Finding]:
    """What can be said of a host by itself."""
    name = facts.host
    return [
        _python(facts),
        _torch(facts),
        Finding(name, "cores", *_cores(facts)),
        Finding(name, "memory", *_memory(facts)),
        Finding(name, "/dev/shm", *_shm(facts)),  # noqa: S108 - a name for a row
        Finding(name, "open files", *_open_files(facts)),
        Finding(name, "free ports", *_ports(facts)),
        Finding(name, "interface", *_interface(facts)),
    ]


def judge_agreement(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Versions that differ between hosts: each host that is not with the majority is named."""
    findings = []
    for package, verdict, why in (
        ("shoal", "bad", "hosts of a run need the same"),
        ("torch", "bad", "another version may round differently, so the result would depend on who computes what"),
        ("python", "warn", "modules may behave differently"),
    ):
        versions = {one.host: _of(one, package) for one in hosts}
        usual = Counter(versions.values()).most_common(1)[0][0] if versions else ""
        for host, version in versions.items():
            if version != usual:
                others = f"{version or 'none'}, the others {usual or 'none'}"
                remedy = f"install {package} {usual} there: {why}"
                findings.append(Finding(host, f"same {package}", _verdict(verdict), others, remedy))
    return findings


def judge_clocks(skews: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """`skews`: by host, how far its clock is ahead of the examiner's, and the error of that, in seconds."""
    findings = []
    for host, (ahead_s, error_s) in skews.items():
        certain_s = max(0.0, abs(ahead_s) - error_s)
        verdict = _above(certain_s, _SKEW_S)
        way = "ahead" if ahead_s > 0 else "behind"
        value = f"{abs(ahead_s):.3f} s {way}" if certain_s > 0 else f"within {error_s * 1000:.1f} ms"
        remedy = "" if verdict == "ok" else "set its clock (timedatectl set-ntp true): events could not be put in order"
        findings.append(Finding(host, "clock", verdict, value, remedy))
    return findings


def judge_crossings(crossings: Sequence[Crossing]) -> list[Finding]:
    """A row for each crossing, and one for each host whose crossings are all out of line with those of the others."""
    measured = [one for one in crossings if not one.problem]
    usual = _usual(measured)
    findings, faulty = [], []
    for one in crossings:
        pair = f"{one.source} -> {one.target}"
        if one.problem:
            remedy = f"let {one.source} reach {one.target} on all ports: look at firewalls and routes between them"
            findings.append(Finding(pair, "link", "bad", one.problem, remedy))
            faulty.append(one)
            continue
        rate = _below(one.bytes_per_s, _RATE)
        latency = _above(one.latency_s, _LATENCY_S)
        value = f"{_rate_words(one.bytes_per_s)}, {one.latency_s * 1000:.2f} ms"
        if len(measured) > 2 and one.bytes_per_s * _OUT_OF_LINE < usual:
            remedy = f"others have {_rate_words(usual)}: look at cable, switch port and other traffic"
            findings.append(Finding(pair, "link", "bad", value, remedy))
            faulty.append(one)
        else:
            findings.append(Finding(pair, "link", _worse(rate, latency), value, _link_remedy(rate, latency)))
    return findings + [
        Finding(host, "its links", "bad", "all of them are out of line", "look at this host's cable, port and firewall")
        for host in _culprits(crossings, faulty)
    ]


def judge_loopback(host: str, crossing: Crossing) -> Finding:
    """One machine by itself: how fast its workers could talk to each other over loopback."""
    if crossing.problem:
        return Finding(host, "loopback", "bad", crossing.problem, "bring it up: ip link set lo up")
    value = f"{_rate_words(crossing.bytes_per_s)}, {crossing.latency_s * 1000:.2f} ms"
    verdict = _below(crossing.bytes_per_s, _RATE)
    return Finding(host, "loopback", verdict, value, "" if verdict == "ok" else "something takes all of the processor")


def rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """All pairs of hosts, in rounds in which each host is at most once: none then disturbs another's measurement."""
    places: list[int | None] = [*range(hosts), *([None] if hosts % 2 else [])]
    result = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        result.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return [pairs for pairs in result if pairs]


def _usual(crossings: Sequence[Crossing]) -> float:
    """What a host's best link carries, in the median: one bad cable spoils most links of three hosts, but the best one
    of its own host only."""
    best: dict[str, float] = {}
    for one in crossings:
        for name in (one.source, one.target):
            best[name] = max(best.get(name, 0.0), one.bytes_per_s)
    return statistics.median_high(best.values()) if best else 0.0


def _culprits(crossings: Sequence[Crossing], faulty: Sequence[Crossing]) -> list[str]:
    """Hosts all of whose crossings are faulty while others' are not."""
    if len(faulty) == len(crossings):
        return []
    names = dict.fromkeys(name for one in crossings for name in (one.source, one.target))
    concerned = {name: [one for one in crossings if name in (one.source, one.target)] for name in names}
    if len(names) < 3:
        return []
    return [name for name, mine in concerned.items() if all(one in faulty for one in mine)]


def _python(facts: HostFacts) -> Finding:
    version = tuple(int(part) for part in facts.python.split(".")[:2] if part.isdecimal())
    old = version < _OLDEST_PYTHON
    remedy = "Shoal needs Python 3.11 or newer" if old else ""
    return Finding(facts.host, "Python", "bad" if old else "ok", facts.python, remedy)


def _torch(facts: HostFacts) -> Finding:
    if not facts.torch:
        return Finding(facts.host, "torch", "bad", "not installed", "pip install torch")
    if facts.torch_problem:
        return Finding(facts.host, "torch", "bad", f"{facts.torch}: {facts.torch_problem}", "install torch anew")
    slow = facts.torch_s > _SLOW_IMPORT_S
    remedy = "importing it is slow: is it on a slow disk, or the machine busy?" if slow else ""
    took = f"imports in {facts.torch_s:.1f} s" if facts.torch_s < TORCH_S else f"not imported within {TORCH_S:.0f} s"
    return Finding(facts.host, "torch", "warn" if slow else "ok", f"{facts.torch}, {took}", remedy)


def _cores(facts: HostFacts) -> tuple[Verdict, str, str]:
    value = f"{facts.cores}, load {facts.load:.1f}"
    if facts.load > 0.5 * facts.cores + 0.5:
        return "warn", value, "other programs use its processor, and every step waits for the slowest worker"
    return "ok", value, ""


def _memory(facts: HostFacts) -> tuple[Verdict, str, str]:
    verdict = _below(facts.available_bytes, _MEMORY)
    value = f"{_size(facts.available_bytes)} of {_size(facts.memory_bytes)} free"
    return verdict, value, "" if verdict == "ok" else "end other programs, or run fewer workers there"


def _shm(facts: HostFacts) -> tuple[Verdict, str, str]:
    verdict = _below(facts.shm_free_bytes, _SHM)
    value = f"{_size(facts.shm_free_bytes)} of {_size(facts.shm_bytes)} free"
    remedy = "make it larger (in a container: --shm-size=2g): loader processes hand batches over in it"
    return verdict, value, "" if verdict == "ok" else remedy


def _open_files(facts: HostFacts) -> tuple[Verdict, str, str]:
    if facts.open_files < 0:
        return "ok", "unlimited", ""
    verdict = _below(facts.open_files, _OPEN_FILES)
    return verdict, f"{facts.open_files} allowed", "" if verdict == "ok" else "raise the limit: ulimit -n 4096"


def _ports(facts: HostFacts) -> tuple[Verdict, str, str]:
    if facts.ports_problem:
        return "bad", facts.ports_problem, "look at its interfaces (ip address) and at what may listen there"
    verdict = _below(facts.free_ports, _FREE_PORTS)
    remedy = "close what holds connections (ss -t), or widen net.ipv4.ip_local_port_range"
    return verdict, str(facts.free_ports), "" if verdict == "ok" else remedy


def _interface(facts: HostFacts) -> tuple[Verdict, str, str]:
    if not facts.interface:
        return "bad", f"none has {facts.address}", "give the address of one of its interfaces (ip address)"
    speed = f", {facts.speed_mbit} Mbit/s" if 0 < facts.speed_mbit < 65535 else ""
    value = f"{facts.interface} {facts.address}{speed}"
    if 0 < facts.speed_mbit < 1000:
        return "warn", value, "the link is slower than 1 Gbit/s: look at its cable and switch port"
    return "ok", value, ""


def _link_remedy(rate: Verdict, latency: Verdict) -> str:
    if rate != "ok":
        return "gradients will take long over this link: a better cable, port or interface pays"
    return "" if latency == "ok" else "every step waits for it: put these hosts closer together"


def _of(facts: HostFacts, package: str) -> str:
    versions = {"shoal": facts.shoal, "torch": facts.torch, "python": ".".join(facts.python.split(".")[:2])}
    return versions[package]


def _verdict(word: str) -> Verdict:
    return next(one for one in _ORDER if one == word)


def _below(value: float, bounds: tuple[float, float]) -> Verdict:
    return "bad" if value < bounds[1] else "warn" if value < bounds[0] else "ok"


def _above(value: float, bounds: tuple[float, float]) -> Verdict:
    return "bad" if value > bounds[1] else "warn" if value > bounds[0] else "ok"


def _worse(one: Verdict, other: Verdict) -> Verdict:
    return max(one, other, key=_ORDER.index)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"


def _rate_words(bytes_per_s: float) -> str:
    mbit = bytes_per_s * 8 / 1e6
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"
