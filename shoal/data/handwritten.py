"""The handwritten digits that come with scikit-learn: 1,797 images of 8 x 8, for trying things out."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import ConfigError, UserError, nearest
from shoal.core.order import epoch_order

TRAIN_SAMPLES = 1437
TEST_SAMPLES = 360
_SPLIT_SEED = 1797


def digits(split: str) -> tuple[Tensor, Tensor]:
    """Return images (float32, [n, 8, 8], from 0 to 1) and labels (int64, [n]) of ``"train"`` or ``"test"``.

    The split is a fixed permutation: 1,437 samples to train, 360 to test.
    """
    if split not in ("train", "test"):
        raise ConfigError(f"digits({split!r}): {nearest(str(split), ('train', 'test'))}")
    table = _table()
    order = epoch_order(_SPLIT_SEED, 0, TRAIN_SAMPLES + TEST_SAMPLES)
    rows = table[order[:TRAIN_SAMPLES] if split == "train" else order[TRAIN_SAMPLES:]]
    images = torch.from_numpy(rows[:, :64].astype(np.float32) / 16).reshape(-1, 8, 8)
    return images, torch.from_numpy(rows[:, 64].astype(np.int64))


def _table() -> npt.NDArray[np.float64]:
    """All samples, one a row: 64 pixels from 0 to 16, then the label."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise UserError("the digits come with scikit-learn, which is not installed: pip install 'shoal[digits]'")
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if file.exists():  # importing scikit-learn takes over a second, in every worker; reading the file 0.03 s
        with gzip.open(file, "rt") as lines:
            return np.loadtxt(lines, delimiter=",")
    from sklearn.datasets import load_digits

    loaded = load_digits()
    return np.column_stack([loaded.data, loaded.target])
