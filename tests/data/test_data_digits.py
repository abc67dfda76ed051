"""The digits: sizes, split, and what happens without scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.core.errors import ConfigError, UserError
from shoal.data import digits

pytestmark = pytest.mark.unit

FIRST_TRAIN = [1, 1, 2, 3, 4, 5, 5, 7, 2, 1]
FIRST_TEST = [4, 1, 7, 7, 2, 9, 3, 2, 3, 2]


def test_sizes_ranges_and_types() -> None:
    for split, samples in (("train", 1437), ("test", 360)):
        images, labels = digits(split)
        assert images.shape == (samples, 8, 8)
        assert images.dtype == torch.float32
        assert labels.shape == (samples,)
        assert labels.dtype == torch.int64
        assert images.min() == 0
        assert images.max() == 1
        counts = labels.bincount()
        assert len(counts) == 10
        assert counts.min() > samples / 10 * 0.7  # no class is short in either part


def test_the_two_parts_are_the_whole() -> None:
    from sklearn.datasets import load_digits

    both = torch.cat([digits("train")[0], digits("test")[0]]).flatten(1) * 16
    labels = torch.cat([digits("train")[1], digits("test")[1]])
    mine = torch.cat([both.double(), labels[:, None].double()], dim=1)
    whole = load_digits()
    theirs = torch.cat([torch.from_numpy(whole.data), torch.from_numpy(whole.target)[:, None].double()], dim=1)
    assert sorted(mine.tolist()) == sorted(theirs.tolist())


def test_the_split_never_moves() -> None:
    assert digits("train")[1][:10].tolist() == FIRST_TRAIN
    assert digits("test")[1][:10].tolist() == FIRST_TEST


def test_scikit_learns_own_loader_gives_the_same_when_the_file_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = digits("test")
    monkeypatch.setattr(Path, "exists", lambda self: False)
    images, labels = digits("test")
    assert torch.equal(images, expected[0])
    assert torch.equal(labels, expected[1])


def test_a_wrong_split_is_answered_by_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        digits("trains")


def test_without_scikit_learn_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"pip install 'shoal\[digits\]'"):
        digits("train")


def test_reading_them_imports_nothing_heavy() -> None:
    code = (
        "import sys, shoal.data; shoal.data.digits('test');"
        "print([name for name in ('sklearn', 'scipy', 'pyarrow', 'simplejpeg') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
