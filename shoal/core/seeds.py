"""Seeds for everything that draws, as pure functions of where it is drawn.

A seed is a hash of the run's seed and a position, so that it is the same whoever computes that position.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(*parts: int) -> int:
    """Hash integers to 64 well-mixed bits (splitmix64 over the parts; order matters)."""
    state = 0x5A0A1
    for part in parts:
        state = (state ^ (part & _MASK)) + GOLDEN & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def order_seed(seed: int, epoch: int) -> int:
    """Seed of the order of samples in `epoch`."""
    return mix(1, seed, epoch)


def grain_seed(seed: int, step: int, grain: int) -> int:
    """Seed of what draws per batch while grain number `grain` of `step` is computed."""
    return mix(2, seed, step, grain)


def step_seed(seed: int, step: int) -> int:
    """Seed of what draws per sample in `step` (dropout): the samples themselves are told apart later."""
    return mix(9, seed, step)


def sample_seed(seed: int, epoch: int, sample: int) -> int:
    """Seed of what draws per sample (augmentation)."""
    return mix(3, seed, epoch, sample)


def batch_seed(seed: int, epoch: int, first: int) -> int:
    """Seed of what draws for the samples of a grain together, before they reach the model; `first` is its first."""
    return mix(7, seed, epoch, first)


def stage_seed(sample: int, stage: int) -> int:
    """Seed of transform number `stage` of a sample whose own seed is `sample`: reading it has drawn from that one."""
    return mix(8, sample, stage)


def init_seed(seed: int) -> int:
    """Seed of the initial parameters."""
    return mix(4, seed) >> 1


def blocks_seed(seed: int, epoch: int) -> int:
    """Seed of the order in which `epoch` lays out the blocks of a data set that is read in blocks."""
    return mix(5, seed, epoch)


def window_seed(seed: int, epoch: int, lane: int, window: int) -> int:
    """Seed of the order of samples within one window of one lane of `epoch`."""
    return mix(6, seed, epoch, lane, window)
