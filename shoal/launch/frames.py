"""A traceback as the user wants to see it: the frames of their own code, and what was raised."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from traceback import StackSummary, TracebackException

import shoal.launch

_OURS = str(Path(shoal.launch.__path__[0]).parent)
_MACHINERY = ("<frozen runpy>", "<frozen importlib", "<string>")
_HEADING = "Traceback (most recent call last):\n"


def user_traceback(error: BaseException) -> str:
    """`error` as Python prints it, with causes and notes, without frames of Shoal, of torch, and of how
    a script is started. Where that would leave no frame at all, all are shown; a syntax error needs
    none."""
    shown = TracebackException.from_exception(error, compact=True)
    _keep(shown, hidden_paths(), needs_frames=not isinstance(error, SyntaxError))
    return "".join(shown.format()).removeprefix(_HEADING).rstrip("\n")


def hidden_paths() -> tuple[str, ...]:
    """How the names of files begin whose frames are not the user's: Shoal's, torch's, and how a script is started."""
    return (_OURS, *_MACHINERY, *_torch())


def _keep(shown: TracebackException, hidden: tuple[str, ...], needs_frames: bool) -> None:
    frames = [frame for frame in shown.stack if not frame.filename.startswith(hidden)]
    if frames or not needs_frames:
        shown.stack = StackSummary.from_list(frames)
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _keep(other, hidden, needs_frames=False)


def _torch() -> tuple[str, ...]:
    spec = importlib.util.find_spec("torch")
    return tuple(spec.submodule_search_locations or ()) if spec is not None else ()
