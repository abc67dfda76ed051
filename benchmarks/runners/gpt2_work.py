"""What both sides of gpt2_dropout.py train: Hugging Face's GPT-2 with its usual dropout, on random text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.runners.job import Job

SIZES = {"gpt2": (7, 768, 12, 50257, 128), "gpt2-small": (2, 64, 2, 500, 32)}  # layers, width, heads, tokens, length


def model(job: Job) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads, tokens, _ = SIZES[job.workload]
    torch.manual_seed(job.seed)
    return GPT2LMHeadModel(GPT2Config(vocab_size=tokens, n_layer=layers, n_embd=width, n_head=heads))  # type: ignore[no-any-return]


def samples(job: Job) -> Tensor:
    """As many texts as the whole run needs."""
    *_, tokens, length = SIZES[job.workload]
    generator = torch.Generator().manual_seed(job.seed)
    return torch.randint(tokens, (job.total_steps * job.global_batch, length), generator=generator)


def loss(given: Any, batch: Any) -> Tensor:
    (texts,) = batch
    found: Tensor = given(input_ids=texts, labels=texts).loss
    return found


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)
