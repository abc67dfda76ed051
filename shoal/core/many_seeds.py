"""Seeds of many samples at once: what `shoal.core.seeds` gives for each of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.core.seeds import GOLDEN, mix

Words = npt.NDArray[np.uint64]


def sample_seeds(seed: int, epoch: int, samples: npt.NDArray[np.int64]) -> Words:
    """`sample_seed` of each of `samples`, at once."""
    return scramble(np.uint64(mix(3, seed, epoch)) ^ samples.astype(np.uint64))


def stage_seeds(samples: Words, stage: int) -> Words:
    """`stage_seed` of each of the seeds `samples`, at once."""
    return scramble(scramble(np.uint64(mix(8)) ^ samples) ^ np.uint64(stage))


def scramble(words: Words) -> Words:
    """What `mix` does with a part, for each of `words`: numbers that lie side by side become well-mixed ones."""
    with np.errstate(over="ignore"):
        state = words + np.uint64(GOLDEN)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Words = state ^ (state >> np.uint64(31))
        return mixed
