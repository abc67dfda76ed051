"""Handwritten digits, ten lines: `python digits.py`, or `shoal train digits.py --workers 2`."""

import torch
from torch import nn

import shoal

trainer = shoal.Trainer(
    model=nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    train=shoal.data.digits("train"),
    test=shoal.data.digits("test"),
    global_batch=128,
    epochs=10,
)
trainer.fit()
