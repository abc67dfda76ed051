"""A recommender: a vector for each user and each item, whose product is how much the one likes the other.

    python sparse_embedding.py
    shoal train sparse_embedding.py --strategy parameter-server --servers 2 --workers 2

The tables are large and a batch touches few of their rows. With ``sparse=True`` a gradient has only those rows, and
under a parameter server only those travel. The tastes and the ratings are made up, so nothing has to be fetched.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import shoal

TRUE_WIDTH = 4  # of the tastes that the ratings are made from


class Recommender(nn.Module):
    """Ratings as products of two vectors, and how generous a user and how popular an item is."""

    def __init__(self, users: int, items: int, width: int = 8) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width + 1, sparse=True)
        self.items = nn.Embedding(items, width + 1, sparse=True)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        liking: Tensor = (user[:, 1:] * item[:, 1:]).sum(dim=1) + user[:, 0] + item[:, 0]
        return liking


def ratings(users: int, items: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """So many pairs of a user and an item, and how much the one likes the other, with some noise."""
    draw = torch.Generator().manual_seed(seed)
    taste = torch.randn(users, TRUE_WIDTH, generator=draw) / TRUE_WIDTH**0.5
    kind = torch.randn(items, TRUE_WIDTH, generator=draw)
    pairs = torch.stack(
        [torch.randint(users, (count,), generator=draw), torch.randint(items, (count,), generator=draw)], dim=1
    )
    liking = (taste[pairs[:, 0]] * kind[pairs[:, 1]]).sum(dim=1)
    return pairs, liking + 0.1 * torch.randn(count, generator=draw)


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn made-up ratings with large embedding tables.")
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--ratings", type=int, default=40_000)
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    pairs, likings = ratings(given.users, given.items, given.ratings)
    kept = given.ratings // 10  # for testing
    trainer = shoal.Trainer(
        model=Recommender(given.users, given.items),
        loss=nn.MSELoss(),
        optimizer=lambda params: torch.optim.SGD(params, lr=20.0),  # a row is touched by few samples of a batch
        train=(pairs[kept:], likings[kept:]),
        test=(pairs[:kept], likings[:kept]),
        global_batch=500,
        epochs=given.epochs,
    )
    trainer.fit()


if __name__ == "__main__":
    main()
