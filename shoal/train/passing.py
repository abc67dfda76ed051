"""A fit() that the others have finished before this worker came: it is passed over, with what came out of it."""

from __future__ import annotations

import time
from pathlib import Path

from shoal.checkpoint.catalog import Catalog
from shoal.checkpoint.model_state import load_model
from shoal.elastic.attendance import RunOver
from shoal.launch.rundir import RunDir
from shoal.launch.session import Session
from shoal.train.result import Result
from shoal.train.spec import RunSpec

_WRITTEN_S = 10.0  # for the first worker to write down how it ended
_LOOK_S = 0.02


def pass_over(spec: RunSpec, session: Session, number: int) -> Result:
    """The result of fit() call `number`, with its parameters in the model, from the run directory.

    Raises `RunOver` where that does not hold them: what follows in the script would not be what the others do.
    """
    given = session.run_dir or spec.config.run_dir
    if given is None or not session.home:
        raise RunOver("the result of an earlier fit() is not on this host")
    stated_outside = any(settings.get("run_dir") for _, settings in session.layers)
    path = Path(given)
    if number > 0 and (stated_outside or not spec.config.run_dir):
        path = path / f"fit-{number + 1}"
    return result_in(RunDir(path), spec)


def result_in(run_dir: RunDir, spec: RunSpec) -> Result:
    """The result of a fit() that is over, with its parameters in the model. Raises `RunOver` where `run_dir` does not
    hold them."""
    until = time.monotonic() + _WRITTEN_S
    while True:
        summary = run_dir.summary()
        trained = Catalog(run_dir.checkpoints).newest_valid(lambda message: None)
        if summary is not None and trained is not None and trained.cursor.step == summary.get("steps"):
            break
        if time.monotonic() >= until:
            raise RunOver(f"the fit() in {run_dir.path} is over and has left no checkpoint")
        time.sleep(_LOOK_S)
    load_model(spec.program.model, {name: piece.tensor for name, piece in trained.state.pieces.items()})
    return Result(summary, run_dir.path)
