"""A user's mistake: one message that says what, where and what to do; status 2; nothing is left of the attempt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from e2e import START_AND_END_S, Shoal
from e2e_script import SCRIPT, program

pytestmark = pytest.mark.ranks

IN_THE_SCRIPT = {
    "strategy": (
        {"settings": "epochs=1, strategy='alreduce'"},
        r"unknown strategy 'alreduce': did you mean 'allreduce'\?",
    ),
    "strategy for one": ({"settings": "epochs=1, strategy='single'"}, r"at most 1 worker, but workers=2: use"),
    "batch too small": (
        {"global_batch": "0"},
        r"global_batch=0 \(from Trainer\(\.\.\.\)\): .*greater than or equal to 1",
    ),
    "batch too large": ({"global_batch": "238"}, r"larger than the data set, which has 237 samples: give at most 237"),
    "length": ({"settings": ""}, r"the length of the run is missing: give epochs or steps"),
    "two lengths": ({"settings": "epochs=1, steps=3,"}, r"epochs=1 and steps=3 both state the length .*: give one"),
    "unknown setting": (
        {"settings": "epochs=1, clip_norm=1.0"},
        r"unknown setting 'clip_norm' in Trainer\(\.\.\.\): did you mean 'clip\.norm'",
    ),
    "no fit": ({"fit": ""}, r"script\.py did not build a Trainer and call fit\(\), .*condition"),
    "init": ({"settings": "epochs=1, init='kaiming'"}, r"init='kaiming' is unknown: did you mean 'kaiming_normal'"),
    "model": ({"model": "'resnet18'"}, r"model='resnet18': give an nn\.Module, or a function without arguments"),
    "frozen model": ({"model": "nn.Linear(10, 4).requires_grad_(False)"}, r"no parameter that requires a gradient"),
    "loss": ({"loss": "None"}, r"loss=None: give a loss module such as nn\.CrossEntropyLoss\(\), or a function"),
    "loss by function": (
        {"loss": "nn.functional.cross_entropy"},
        r"give the module \(nn\.CrossEntropyLoss\(\) for F\.cross",
    ),
    "loss of a shape": (
        {"loss": "lambda model, batch: model(batch[0])"},
        r"a tensor of shape \(\d+, 4\), not one number: return the mean",
    ),
    "loss that is no tensor": ({"loss": "lambda model, batch: 1.0"}, r"the loss gives float, not one number"),
    "loss without gradient": (
        {"loss": "lambda model, batch: model(batch[0]).detach().mean()"},
        r"the loss does not depend on the model's parameters",
    ),
    "reduction": (
        {"loss": "nn.CrossEntropyLoss(reduction='none')"},
        r"reduction='none' gives no single loss: use 'mean' or 'sum'",
    ),
    "optimizer": (
        {"optimizer": "'sgd'"},
        r"optimizer='sgd' is neither an optimizer nor a function: give a function such as",
    ),
    "optimizer that is none": (
        {"optimizer": "lambda parameters: 3"},
        r"the function given as optimizer returned int, not an optimizer: give",
    ),
    "optimizer of another model": (
        {"optimizer": "lambda parameters: torch.optim.SGD(nn.Linear(10, 4).parameters(), lr=0.1)"},
        r"holds 0 of the model's \d+ parameters, and 2 that are not the model's: .* would never change",
    ),
    "schedule": ({"settings": "epochs=1, schedule=0.1"}, r"schedule=0\.1: give one of shoal\.schedules"),
    "metrics": ({"settings": "epochs=1, metrics=['accuracy']"}, r"metrics=\['accuracy'\]: give a dictionary"),
    "callbacks": (
        {"settings": "epochs=1, callbacks=[print]"},
        r"is no shoal\.callbacks\.Callback: give a list of instances",
    ),
    "one callback": (
        {"settings": "epochs=1, callbacks=print"},
        r"is no shoal\.callbacks\.Callback: give a list of instances",
    ),
    "data": ({"train": "42"}, r"the train data is of type int: give a map-style torch Dataset"),
    "data of two lengths": (
        {"train": "(torch.zeros(3, 10), torch.zeros(4))"},
        r"have 3, 4 rows: they must have the same",
    ),
    "no data": ({"train": "data(0, 1)"}, r"the train data is empty: give at least one sample"),
    "no test data": ({"test": "data(0, 1)"}, r"the test data is empty: give at least one sample"),
    "data without targets": ({"train": "data(237, 1)[0]"}, r"not \(input, target\): give loss as a function"),
    "loader": (
        {"train": "torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data(237, 1)))"},
        r"is a DataLoader: give its dataset",
    ),
}


@pytest.mark.parametrize(("wrong", "words"), IN_THE_SCRIPT.values(), ids=IN_THE_SCRIPT.keys())
def test_in_the_script(shoal_here: Shoal, wrong: dict[str, str], words: str) -> None:
    shoal_here.write(program(**wrong))
    done = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert re.search(words, done.message()), done.err
    assert shoal_here.files() == {"script.py"}
    assert done.out == ""
    assert done.seconds < START_AND_END_S


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"train": "data(237 + rank(), 1)"}, "samples of training data: 238 against 237"),
        ({"model": "nn.Linear(10, 4 + rank())"}, "parameters"),
    ],
)
def test_another_program_on_another_worker(shoal_here: Shoal, wrong: dict[str, str], words: str) -> None:
    """That is a fault of that worker, which is told like any other: see `test_culprits`."""
    shoal_here.write(program(**wrong))
    done = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert re.match(rf"worker 1 on \S+ differs from worker 0 on \S+ in {words}", done.message()), done.err
    assert done.out == ""
    assert done.seconds < START_AND_END_S


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "global_batch=238"), r"global_batch=238 .*larger than the data set, .* at most 237"),
        (("--set", "weights=[1,2,3]"), r"names 3 shares but workers=2"),
        (("--set", "init=ones"), r"init='ones' is unknown"),
        (("--strategy", "single"), r"at most 1 worker"),
        (("--set", "device=cuda"), r"device=cuda, but PyTorch sees no GPU here: use --set device=cpu"),
        (("--set", "comm.backend=nccl"), r"comm\.backend=nccl cannot be used: .* Use comm\.backend=auto"),
        (("--set", "loader.processes=-1"), r"loader\.processes=-1"),
        (("--set", "checkpoint.every=0 steps"), r"checkpoint\.every='0 steps'"),
        (("--set", "clip.weights=[1,-1]"), r"lower end must be below"),
        (("--set", "clip=3"), r"clip=3"),
        (("--set", "seed.a=3"), r"unknown setting 'seed\.a'"),
        (("--set", "checkpoint.monitor=val_loss"), r"nothing measures it: .*\(known: test_accuracy, test_loss\)"),
        (("--codec", "int9", "--set", "workers=1"), r"did you mean 'int8'"),
    ],
)
def test_on_the_command_line(shoal_here: Shoal, words: tuple[str, ...], message: str) -> None:
    shoal_here.write(program())
    workers = () if "workers=1" in words else ("--workers", "2")
    done = shoal_here.train(*workers, "--run-dir", "run", *words)
    assert re.search(message, done.message()), done.err
    assert shoal_here.files() == {"script.py"}


@pytest.fixture
def trained(shoal_here: Shoal) -> Shoal:
    """A run that is in its middle."""
    shoal_here.write(SCRIPT)
    assert shoal_here.train("--workers", "2", "--run-dir", "run", "--", "--signal", "17").status == 130
    return shoal_here


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seed", "4"), r"seed=0, but now seed=4: run it with the old value, or choose another --run-dir"),
        (("--set", "global_batch=30"), r"global_batch=20, but now global_batch=30"),
        (("--set", "clip.norm=1.0"), r"clip\.norm=None, but now clip\.norm=1\.0"),
        (("--set", "grain=4"), r"grain=1, but now grain=4"),
        (("--set", "loader.shuffle=false"), r"loader\.shuffle=True, but now loader\.shuffle=False"),
    ],
)
def test_the_directory_of_another_configuration(trained: Shoal, words: tuple[str, ...], message: str) -> None:
    before = snapshot(trained.run.path)
    done = trained.train("--workers", "2", "--run-dir", "run", *words)
    assert re.search(message, done.message())
    assert "Errno" not in done.err
    assert snapshot(trained.run.path) == before


def test_the_directory_of_another_script(trained: Shoal) -> None:
    before = snapshot(trained.run.path)
    trained.write(program(), "other.py")
    message = trained.train("--workers", "2", "--run-dir", "run", script="other.py").message()
    assert re.search(r"run belongs to the script .*/script\.py, not to .*/other\.py: choose another --run-dir", message)
    assert snapshot(trained.run.path) == before


def test_the_directory_of_another_model(trained: Shoal) -> None:
    """The script has been edited meanwhile: its checkpoints fit no longer."""
    before = snapshot(trained.run.checkpoints)
    trained.write(SCRIPT.replace("nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4)", "nn.Linear(10, 4)"))
    message = trained.train("--workers", "2", "--run-dir", "run").message()
    assert re.search(r"checkpoint.*does not fit", message), message
    assert snapshot(trained.run.checkpoints) == before


def test_the_directory_of_other_data(trained: Shoal) -> None:
    before = snapshot(trained.run.checkpoints)
    trained.write(SCRIPT.replace("data(237, 1)", "data(236, 1)"))
    message = trained.train("--workers", "2", "--run-dir", "run").message()
    assert "a data set of 237 samples, this one has 236: use the same data, or another --run-dir" in message
    assert snapshot(trained.run.checkpoints) == before


@pytest.mark.parametrize(
    ("content", "how"),
    [
        (b"a: [", "it is no YAML"),
        (b"\xff\xfe\x00", "it is no YAML"),
        (b"", "it holds no settings"),
        (b"[1, 2]", "it holds no settings"),
        (b"script: 3\nglobal_batch: 20\n", "script is no mapping"),
        (b"script: null\nglobal_batch: 20\ngrain: x\n", "grain"),
        (b"script: null\nglobal_batch: 20\npasses: 7\n", "passes"),
        (b"epochs: 3\n", "global_batch: Field required"),
    ],
)
def test_a_damaged_configuration(trained: Shoal, content: bytes, how: str) -> None:
    (trained.run.path / "config.yaml").write_bytes(content)
    message = trained.train("--workers", "2", "--run-dir", "run").message()
    assert re.search(rf"run/config\.yaml is damaged \({how}.*restore that file, or choose another --run-dir", message)
    assert (trained.run.path / "config.yaml").read_bytes() == content


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("script.py", r"script\.py cannot be used, because a file is in its place: choose another --run-dir"),
        ("script.py/run", r"script\.py/run cannot be used, because a file is in its place: choose another --run-dir"),
        (".", r"is not empty and is no run directory: choose another --run-dir, or empty it first"),
        ("/proc/run", r"/proc/run cannot be used \(No such file or directory\): choose another --run-dir"),
    ],
)
def test_a_directory_that_cannot_be_one(shoal_here: Shoal, place: str, message: str) -> None:
    shoal_here.write(program())
    assert re.search(message, shoal_here.train("--workers", "2", "--run-dir", place).message())
    assert shoal_here.files() == {"script.py"}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loss_that_is_not_a_number(shoal_here: Shoal, workers: int) -> None:
    """Names the step and the worker that has the sample, and keeps the last good checkpoint."""
    shoal_here.write(
        program(
            train="bad()",
            settings="epochs=2, checkpoint={'every': '5 steps'}, loader={'shuffle': False},",
            before="""
def bad():
    inputs, targets = data(237, 1)
    inputs[219] = float("nan")  # the last sample of the batch after 10 steps of 20
    return inputs, targets
""",
        )
    )
    done = shoal_here.train("--workers", str(workers), "--run-dir", "run")
    message = done.message()
    last = shoal_here.run.checkpoints / "step-00000010"
    assert message.startswith(
        f"the loss became NaN or infinite at step 10 on worker {workers - 1}; the update was not applied.\n"
        f"The last good checkpoint is {last}\n"
    )
    assert "part 0 of the data has NaN in sample 219" in message
    assert "--job fill:columns=" in message
    assert "checkpoint     step 10" in done.out
    assert "to go on" not in done.out, "it would be the same there again"
    assert shoal_here.run.names() == ["step-00000005", "step-00000010"]
    summary = shoal_here.run.summary()
    assert summary["status"] == "failed"
    assert "NaN" in summary["faults"][0]["cause"]
    assert shoal_here.run.events("run_ended")[-1]["status"] == "failed"


def test_encryption_that_a_script_insists_on_cannot_be_had_where_other_hosts_may_join(shoal_here: Shoal) -> None:
    """Refused before the first step, though no other host is there yet; what the user says in the end counts."""
    shoal_here.write(program(settings="epochs=1, comm={'encrypt': 'on'},"))
    words = ("--workers", "2", "--listen", "127.0.0.1", "--run-dir", "run")
    done = shoal_here.train(*words)
    assert done.status == 2, done
    assert "shoal: error: comm.encrypt=on cannot be kept between hosts: workers of several hosts" in done.err
    assert not shoal_here.run.events("step")
    assert shoal_here.train(*words, "--encrypt", "auto").status == 0
    assert shoal_here.train("--workers", "2", "--run-dir", "alone").status == 0, "on one host nothing is in its way"
