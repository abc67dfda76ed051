"""Small networks with everything that makes distributing hard: normalisation, dropout, tied and unused weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 5
VOCABULARY = 13
CONTEXT = 8
FEATURES = 12
IMAGE_SIDE = 8


class ResNet(nn.Module):
    """Two residual blocks with batch normalisation on images of one channel."""

    def __init__(self, channels: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(_Block(channels), _Block(channels))
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(torch.relu(self.norm(self.stem(images))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, features: Tensor) -> Tensor:
        inner = torch.relu(self.first_norm(self.first(features)))
        return torch.relu(features + self.second_norm(self.second(inner)))


class Norms(nn.Module):
    """Batch normalisation in every form: of rows, sequences, images and volumes; shared by two places, frozen, without
    weights, with cumulative and without running statistics."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.shared = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.volumes = nn.BatchNorm3d(channels, momentum=0.3)
        self.sequences = nn.BatchNorm1d(channels, momentum=None)
        self.frozen = nn.BatchNorm2d(channels)
        self.plain = nn.BatchNorm2d(channels, affine=False, eps=1e-3)
        self.narrow = nn.Linear(channels * 16, 70)  # more channels than others have
        self.rows = nn.BatchNorm1d(70)
        self.untracked = nn.BatchNorm1d(70, track_running_stats=False)
        self.head = nn.Linear(70, CLASSES)
        nn.init.constant_(self.frozen.running_mean, 0.3)  # type: ignore[arg-type]

    def train(self, mode: bool = True) -> Norms:
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.shared(self.stem(images)))
        features = features + torch.relu(self.shared(self.second(features)))
        features = self.volumes(features.view(len(images), -1, 2, 2, 4)).flatten(2, 3)
        features = self.sequences(features.flatten(2) + 1.0).view_as(features)
        features = self.plain(self.frozen(features) + 3.0)
        rows: Tensor = self.rows(self.narrow(features.view(len(images), -1)))
        logits: Tensor = self.head(self.untracked(torch.tanh(rows)))
        return logits


class GPT(nn.Module):
    """One causal transformer block with dropout; the output weights are those of the embedding.

    `classes_second` puts the vocabulary where `nn.CrossEntropyLoss` looks for classes.
    """

    def __init__(self, width: int = 16, dropout: float = 0.1, classes_second: bool = False) -> None:
        super().__init__()
        self.classes_second = classes_second
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        self.first_norm = nn.LayerNorm(width)
        # without bias: that of keys has no effect, so its gradient is pure rounding, which Adam would blow up
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.dropout(self.tokens(tokens) + self.positions[: tokens.shape[1]])
        query, key, value = self.attend(self.first_norm(hidden)).unsqueeze(1).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)
        hidden = hidden + self.dropout(self.project(mixed))
        hidden = hidden + self.dropout(self.narrow(F.gelu(self.widen(self.second_norm(hidden)))))
        logits: Tensor = self.head(hidden)
        return logits.transpose(1, 2) if self.classes_second else logits


class MLP(nn.Sequential):
    """Nothing that looks at its batch."""

    def __init__(self, width: int = 24) -> None:
        super().__init__(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
        )


class Branches(nn.Module):
    """Parameters of every kind: never used, used by some samples only, frozen, tied, trained.

    A sample is rare if its first feature is above `RARE_ABOVE`; without one in the batch `rare` has no gradient.
    """

    RARE_ABOVE = 2.2

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.entry = nn.Linear(FEATURES, width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.tied = nn.Linear(width, width)
        self.twin = nn.Linear(width, width)
        self.twin.weight = self.tied.weight
        self.rare = nn.Linear(FEATURES, width)
        self.unused = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        hidden = torch.tanh(self.entry(features))
        is_rare = features[:, 0] > self.RARE_ABOVE
        if bool(is_rare.any()):
            hidden = hidden.index_add(0, is_rare.nonzero().flatten(), self.rare(features[is_rare]))
        hidden = torch.tanh(self.frozen(hidden))
        hidden = torch.tanh(self.twin(torch.tanh(self.tied(hidden))))
        logits: Tensor = self.head(hidden)
        return logits


class SparseBag(nn.Module):
    """Makes sparse gradients without any module that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCABULARY, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        rows = F.embedding((features[:, :3] * 3).long().abs() % VOCABULARY, self.table, sparse=True)
        logits: Tensor = self.head(rows.mean(dim=1))
        return logits


class SparseTable(nn.Module):
    """A large table, of which a batch touches few rows."""

    def __init__(self, rows: int = 20_000) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 16, sparse=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        rows = self.table((features[:, :3] * 100).long().abs() % self.table.num_embeddings)
        logits: Tensor = self.head(rows.mean(dim=1))
        return logits
