"""Updates that arrive coded, as the arrays that the codec was given. Imports torch, which nothing else here does.

Every copy of a post decodes for itself, so what goes from a primary to its backup is as small as what came.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from shoal.comm.codecs.base import Codec
from shoal.comm.codecs.names import codec_named
from shoal.core.errors import ConfigError
from shoal.store.operations import Coding, Push, PushPull, Set, Stage, Update
from shoal.store.packing import PackingError

Coded = TypeVar("Coded", bound=Set | Push | PushPull | Stage)

_TYPES = {"float32": torch.float32, "float64": torch.float64}
_codecs: dict[str, Codec] = {}  # decoding keeps nothing from one payload to the next


def decoded(operation: Coded) -> Coded:
    """The same operation with plain arrays. Raises `PackingError` for what no codec has made."""
    return replace(operation, updates=tuple(_plain(one) if one.coding else one for one in operation.updates))


def _plain(update: Update) -> Update:
    coding = update.coding
    assert coding is not None
    try:
        if update.rows is not None or update.values.dtype != np.uint8 or update.values.ndim != 1:
            raise ValueError("whole slices are coded, as bytes")
        return replace(update, values=_decode(coding, update.values), coding=None)
    except (ConfigError, KeyError, ValueError, RuntimeError, IndexError) as error:
        raise PackingError(f"what is given to {update.where} cannot be decoded: {error}") from error


def _decode(coding: Coding, payload: npt.NDArray[Any]) -> npt.NDArray[Any]:
    codec, dtype, count = _codec(coding.codec), _TYPES[coding.dtype], prod(coding.shape)
    if min(coding.shape, default=0) < 0 or not 0 <= coding.start <= coding.stop <= count:
        raise ValueError(f"[{coding.start}:{coding.stop}] is not within {coding.shape}")
    if len(payload) != codec.payload_bytes(coding.shape, dtype):
        raise ValueError(f"{coding.codec} makes no {len(payload)} bytes of {coding.shape}")
    out = torch.empty(coding.shape, dtype=dtype)
    codec.decode("", torch.from_numpy(payload if payload.flags.writeable else payload.copy()), out)
    return out.view(-1)[coding.start : coding.stop].numpy()


def _codec(name: str) -> Codec:
    if name not in _codecs:
        _codecs[name] = codec_named(name)
    return _codecs[name]
