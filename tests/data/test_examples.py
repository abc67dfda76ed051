"""The examples: their models have the right shape, their data sets lose nothing, their mistakes are answered."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shoal.data import open_source

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def resnet() -> ModuleType:
    return load("cifar10_resnet")


@pytest.fixture(scope="module")
def gpt() -> ModuleType:
    return load("shakespeare_gpt")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny CIFAR: 30 images to train, 10 to test, each of one colour."""
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

    directory = tmp_path_factory.mktemp("cifar")
    for name, samples in (("train", 30), ("test", 10)):
        jpegs = []
        for number in range(samples):
            file = io.BytesIO()
            Image.new("RGB", (32, 32), (200, 100, number)).save(file, "JPEG", quality=95)
            jpegs.append(file.getvalue())
        labels = pyarrow.array([number % 10 for number in range(samples)], pyarrow.int8())
        table = pyarrow.table({"image": pyarrow.array(jpegs, pyarrow.binary()), "label": labels})
        parquet.write_table(table, directory / f"{name}.parquet")
    return directory


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.unit
def test_resnet_20_has_the_parameters_of_the_paper(resnet: ModuleType) -> None:
    assert parameters(resnet.ResNet(20)) == 269_722
    assert parameters(resnet.ResNet(56)) == 853_018
    small = resnet.ResNet(depth=8, width=4, classes=3)
    assert small(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(ValueError, match="depth=21"):
        resnet.ResNet(21)


@pytest.mark.unit
def test_the_way_around_a_block_halves_the_image_and_adds_empty_channels(resnet: ModuleType) -> None:
    block = resnet.Block(4, 8)
    nn.init.zeros_(block.norm2.weight)  # nothing but the way around is left
    x = torch.rand(2, 4, 6, 6)
    y = block(x)
    assert y.shape == (2, 8, 3, 3)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert y[:, :2].abs().sum() == y[:, 6:].abs().sum() == 0


@pytest.mark.unit
def test_images_are_decoded_in_order_and_normalised(resnet: ModuleType, images: Path) -> None:
    plain = resnet.Cifar10(images / "test.parquet", augment=False)
    assert len(plain) == 10
    assert len(resnet.Cifar10(images / "train.parquet", augment=True, limit=7)) == 7
    assert plain.images.shape == (10, 3, 32, 32)
    assert plain.labels == list(range(10))
    image, label = plain[3]
    assert label == 3
    assert image.dtype == torch.float32
    expected = (torch.tensor([200.0, 100.0, 3.0]) - torch.tensor([125.3, 123.0, 113.9])) / torch.tensor(
        [63.0, 62.1, 66.7]
    )
    assert torch.allclose(image.mean(dim=(1, 2)), expected, atol=0.05)  # what JPEG loses


@pytest.mark.unit
def test_augmentation_pads_crops_and_mirrors(resnet: ModuleType) -> None:
    image = np.arange(1, 3 * 32 * 32 + 1).reshape(3, 32, 32) % 255 + 1
    image = image.astype(np.uint8)
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
    windows = {
        window.tobytes()
        for top in range(9)
        for left in range(9)
        for crop in [padded[:, top : top + 32, left : left + 32]]
        for window in (crop, crop[:, :, ::-1])
    }
    assert len(windows) == 162
    seen = {resnet.crop_and_flip(image).tobytes() for _ in range(3000)}
    assert seen == windows  # each of them comes up, and nothing else


@pytest.mark.unit
def test_augmentation_is_the_samples_own(resnet: ModuleType, images: Path) -> None:
    source = open_source(resnet.Cifar10(images / "train.parquet", augment=True), "train")
    x, y = source.fetch(np.arange(30), 1, 0)
    assert x.shape == (30, 3, 32, 32)
    assert y.tolist() == [number % 10 for number in range(30)]
    parts = [source.fetch(np.arange(start, start + 10), 1, 0)[0] for start in (0, 10, 20)]
    assert torch.equal(torch.cat(parts), x)
    assert not torch.equal(source.fetch(np.arange(30), 2, 0)[0], x)


@pytest.mark.unit
def test_gpt_ties_its_embeddings_and_sees_only_the_past(gpt: ModuleType) -> None:
    config = gpt.GPTConfig(vocabulary=11, context=8, layers=2, heads=2, width=16, dropout=0.5)
    model = gpt.GPT(config)
    assert model.predict.weight is model.characters.weight
    names = [name for name, _ in model.named_parameters()]
    assert "characters.weight" in names
    assert "predict.weight" not in names
    model.eval()
    text = torch.randint(11, (1, 8))
    before = model(text)
    assert torch.equal(before, model(text))  # no dropout in evaluation
    text[0, 5] = (text[0, 5] + 1) % 11
    after = model(text)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])
    model.train()
    assert not torch.equal(model(text), model(text))


@pytest.mark.unit
@pytest.mark.parametrize("length", [2, 8, 9, 10, 16, 17, 31])
def test_every_character_but_the_first_is_a_target_once(gpt: ModuleType, length: int) -> None:
    text = torch.arange(length)
    windows = gpt.Windows(text, 8)
    targets: list[int] = []
    for number in range(len(windows)):
        inputs, wanted = windows[number]
        assert inputs.shape == wanted.shape == (8,)
        known = wanted != gpt.NO_TARGET
        assert torch.equal(inputs[known] + 1, wanted[known])
        targets += wanted[known].tolist()
    assert targets == list(range(1, length))
    with pytest.raises(ValueError, match="nothing to predict"):
        gpt.Windows(torch.arange(1), 8)


@pytest.mark.unit
def test_the_loss_is_a_sum_and_its_weight(gpt: ModuleType) -> None:
    config = gpt.GPTConfig(vocabulary=31, context=8, layers=1, heads=1, width=8, dropout=0.0)
    model = gpt.GPT(config)
    source = open_source(gpt.Windows(torch.arange(20), 8), "train")
    total, weight = gpt.next_character_loss(model, source.fetch(np.arange(3), 0, 0))
    assert weight == 19
    parts = [gpt.next_character_loss(model, source.fetch(np.array([number]), 0, 0)) for number in range(3)]
    assert [int(part[1]) for part in parts] == [8, 8, 3]
    assert torch.isclose(sum(part[0] for part in parts), total)


@pytest.mark.unit
def test_text_becomes_numbers_and_back(gpt: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("banana, für uns", encoding="utf-8")
    numbers, alphabet = gpt.read_text(tmp_path / "text")
    assert "".join(alphabet[number] for number in numbers) == "banana, für uns"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("cifar10_resnet", [], "required: --data"),
        ("cifar10_resnet", ["--data", "/nowhere"], "Parquet file with a column `image`"),
        ("shakespeare_gpt", [], "required: --data"),
        ("shakespeare_gpt", ["--data", "/nowhere"], "Give a text file"),
    ],
)
def test_missing_data_is_answered_by_what_is_expected(
    name: str,
    arguments: list[str],
    says: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module: Any = request.getfixturevalue({"cifar10_resnet": "resnet", "shakespeare_gpt": "gpt"}[name])
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit) as caught:
        module.main()
    assert caught.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())


def run_example(name: str, arguments: list[str], where: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def summary(where: Path) -> dict[str, Any]:
    (file,) = where.glob("runs/*/summary.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.ranks
def test_digits_runs_as_it_is(tmp_path: Path) -> None:
    run_example("digits", [], tmp_path)
    result = summary(tmp_path)
    assert result["status"] == "completed"
    assert result["final"]["test_accuracy"] > 0.9
    assert result["coverage"] == {"expected": 14370, "once": 14370, "missed": 0, "repeated": 0}


@pytest.mark.ranks
def test_cifar10_resnet_runs(tmp_path: Path, images: Path) -> None:
    arguments = ["--data", str(images), "--epochs", "1", "--depth", "8", "--global-batch", "12"]
    run_example("cifar10_resnet", arguments, tmp_path)
    result = summary(tmp_path)
    assert result["coverage"]["once"] == 30
    assert result["steps"] == 3


@pytest.mark.ranks
def test_shakespeare_gpt_learns(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("to be, or not to be. " * 300)
    shape = ["--context", "16", "--layers", "1", "--heads", "2", "--width", "16"]
    run_example("shakespeare_gpt", ["--data", "text", "--epochs", "4", *shape], tmp_path)
    result = summary(tmp_path)
    assert result["coverage"]["missed"] == result["coverage"]["repeated"] == 0
    assert result["final"]["test_loss"] < 2.3  # below that of guessing by frequency


@pytest.mark.ranks
def test_the_recommender_learns_tastes(tmp_path: Path) -> None:
    run_example("sparse_embedding", ["--epochs", "4"], tmp_path)
    result = summary(tmp_path)
    assert result["coverage"] == {"expected": 144_000, "once": 144_000, "missed": 0, "repeated": 0}
    assert result["final"]["test_loss"] < 0.5  # guessing the mean gives 1.0
