"""What a shell offers when a word is begun. Free of torch: an answer must come at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shoal.cli.settings import HELP, choices_of
from shoal.comm.codecs.names import AUTO as AUTO_CODEC
from shoal.comm.codecs.names import CODECS
from shoal.core.consistency import consistencies
from shoal.strategies.names import AUTO, BETWEEN_TEAMS, STRATEGIES, WITHIN_TEAMS

Complete = Callable[[str], list[str]]

_CONSISTENCIES = [f"{name}:4" if name == "ssp" else name for name in consistencies]
_WORDS = {
    "strategy": [AUTO, *STRATEGIES],
    "comm.codec": [*CODECS, AUTO_CODEC],
    "server.consistency": _CONSISTENCIES,
    "hybrid.inner": list(WITHIN_TEAMS),
    "hybrid.outer": list(BETWEEN_TEAMS),
}


def words_of(setting: str) -> list[str]:
    """The words that a setting may be, where they are known."""
    return _WORDS.get(setting) or choices_of(setting)


def one_of(words: Iterable[str]) -> Complete:
    """Completes one of `words`."""
    known = list(words)

    def complete(incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete)]

    return complete


def values_of(setting: str) -> Complete:
    """Completes the value of an option that is a setting."""
    return one_of(words_of(setting))


def assignments(incomplete: str) -> list[str]:
    """Completes the words after --set: ``comm.backend=shm``; only ``comm.bucket_mib=`` where any value may follow."""
    names = [name for name in HELP if name.startswith(incomplete.partition("=")[0])]
    offered = [f"{name}={word}" for name in names for word in words_of(name) or [""]]
    return [one for one in offered if one.startswith(incomplete)]


def setting_names(incomplete: str) -> list[str]:
    """Completes the name of a setting."""
    return one_of(HELP)(incomplete)
