"""``python script.py``, without a launcher: the same words for the same mistakes, and the same initial weights."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e import Done, Process
from e2e_script import program

pytestmark = pytest.mark.ranks

HEAVY = {
    "cloudpickle", "click", "fastapi", "IPython", "matplotlib", "pandas", "PIL", "pyarrow", "pydantic", "rich", "scipy",
    "sklearn", "tensorboard", "typer", "yaml",
}  # fmt: skip


def together(start: Callable[..., Process], directory: Path, scripts: dict[str, str]) -> dict[str, Done]:
    """Run several scripts at the same time, each in a directory of its own."""
    running = {}
    for name, text in scripts.items():
        (directory / name).mkdir()
        (directory / name / "script.py").write_text(text)
        running[name] = start([sys.executable, "script.py"], directory=directory / name)
    return {name: process.end() for name, process in running.items()}


def left(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir() if not entry.name.startswith(".stderr")}


def test_mistakes_in_one_process(tmp_path: Path, start: Callable[..., Process]) -> None:
    here = "trainer.fit(run_dir='run')"
    scripts = {
        "batch": program(global_batch="1000", fit=here),
        "optimizer": program(optimizer="'sgd'", fit=here),
        "directory": program(fit="trainer.fit(run_dir='script.py')"),
        "nan": program(train="(data(237, 1)[0] * float('nan'), data(237, 1)[1])", fit=here),
        "own": program(loss="loss", before="def loss(model, batch):\n    return model(batch[0])['logits']", fit=here),
    }
    done = together(start, tmp_path, scripts)
    assert "global_batch=1000 is larger than the data set, which has 237 samples" in done["batch"].message()
    assert "optimizer='sgd' is neither an optimizer nor a function" in done["optimizer"].message()
    assert "because a file is in its place: choose another --run-dir" in done["directory"].message()
    assert "the loss became NaN or infinite at step 0 on worker 0" in done["nan"].message()
    for name in ("batch", "optimizer", "directory", "own"):
        assert left(tmp_path / name) == {"script.py"}
    # what the user's own code raises is Python's to show
    assert done["own"].status == 1
    assert done["own"].err.count("IndexError") == 1
    assert "in loss\n" in done["own"].err


def test_mistakes_on_workers_that_a_script_starts(tmp_path: Path, start: Callable[..., Process]) -> None:
    """``fit(workers=2)``: the trainer is sent to new processes, and what goes wrong there is shown here, once."""
    scripts = {
        "workers": program(fit="trainer.fit(workers=0)"),
        "directory": program(fit="trainer.fit(workers=2, run_dir='script.py')"),
        "own": program(
            loss="loss",
            before="def loss(model, batch):\n    if rank() == 1: raise ValueError('bad pixel')\n"
            "    return model(batch[0]).mean()",
            fit="trainer.fit(workers=2, run_dir='run')",
        ),
    }
    done = together(start, tmp_path, scripts)
    assert "workers=0 (from fit(...))" in done["workers"].message()
    assert "because a file is in its place: choose another --run-dir" in done["directory"].message()
    own = done["own"]
    assert own.status == 1
    assert own.err.startswith(f"shoal: worker 1 of 2 on {os.uname().nodename} failed at step 0 (compare)\n\n  File ")
    assert (own.err + own.out).count("\nValueError: bad pixel") == 1
    assert "in loss\n" in own.err
    assert "Traceback" not in own.err
    assert left(tmp_path / "workers") == left(tmp_path / "directory") == {"script.py"}


IMPORT = """
import json, sys
import torch
before = set(sys.modules)
torch.seed()
import shoal
imported = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
first = torch.initial_seed()
drawn = torch.rand(1).item()

import importlib
torch.manual_seed(5)
importlib.reload(shoal)  # imported after the user has seeded
kept = torch.initial_seed()
shoal.Trainer
print(json.dumps({"imported": imported, "first": first, "drawn": drawn, "kept": kept,
                  "later": sorted({name.partition(".")[0] for name in set(sys.modules) - before})}))
"""


def test_importing_shoal(start: Callable[..., Process]) -> None:
    """Costs next to nothing beyond torch, and makes initial weights a function of the seed unless the user did."""
    import torch

    from shoal.core.seeds import init_seed

    done = start([sys.executable, "-c", IMPORT]).end()
    assert done.status == 0, done
    told = json.loads(done.out)
    assert "shoal" in told["imported"]
    assert not HEAVY & set(told["imported"]), "imported by `import shoal`"
    ours = {name for name in told["imported"] if name not in sys.stdlib_module_names}
    assert ours == {"shoal"}, "what else is not Python's own"
    assert not {"sklearn", "pyarrow", "tensorboard", "typer", "rich"} & set(told["later"]), "imported by shoal.Trainer"
    assert told["first"] == init_seed(0)
    assert told["drawn"] == torch.rand(1, generator=torch.Generator().manual_seed(init_seed(0))).item()
    assert told["kept"] == 5


IMPORT_FIRST = """
import inspect, json, sys
import shoal
loaded = "torch" in sys.modules
import torch
finders = [type(one).__module__ for one in sys.meta_path]
print(json.dumps({"loaded": loaded, "seed": torch.initial_seed(), "finders": finders,
                  "source": "def compile" in inspect.getsource(torch.compile)}))
"""


def test_importing_shoal_does_not_import_torch_and_seeds_it_when_that_comes(start: Callable[..., Process]) -> None:
    from shoal.core.seeds import init_seed

    done = start([sys.executable, "-c", IMPORT_FIRST]).end()
    assert done.status == 0, done
    told = json.loads(done.out)
    assert not told["loaded"]
    assert told["seed"] == init_seed(0)
    assert not [module for module in told["finders"] if module.startswith("shoal")], "it has had its effect"
    assert told["source"], "torch is as ever"
