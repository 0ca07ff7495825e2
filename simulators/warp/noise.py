"""Computes the numbers of `simulators.noise` on any device, for all lanes at once, without waiting for the device."""

import numpy as np
import torch
from torch import Tensor

from simulators.noise import STRIDE


def _signed(word: int) -> int:
    """Returns the int64 with the bits of a 64-bit word: torch cannot multiply unsigned words; int64 wraps equally."""
    return word - (1 << 64) if word >> 63 else word


_STRIDE = _signed(int(STRIDE))
_FIRST_FACTOR, _SECOND_FACTOR = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


class LaneNoise:
    """Random numbers for (seed, lane, episode), equal to those of `simulators.noise.EpisodeNoise`.

    Its tensors keep their addresses, so a CUDA graph that was captured with them uses a new seed after `seed`.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        """Creates the noise of lanes 0 to count - 1; `seed` must be called before the first numbers are drawn."""
        self._root = torch.zeros((), dtype=torch.int64, device=device)
        self._lanes = torch.arange(count, dtype=torch.int64, device=device) << 32

    def seed(self, seed: int) -> None:
        """Sets the seed; it may be of any size."""
        self._root.fill_(_signed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])))

    def uniform(self, episodes: Tensor, size: int) -> Tensor:
        """Draws numbers uniform in [0, 1).

        Args:
            episodes: [N] int64, counted from 0, below 2^32.
            size: Numbers per lane; a smaller size gives a prefix of a larger one.

        Returns:
            [N, size] float64.
        """
        state = mixed(self._root + _STRIDE * (self._lanes + episodes))
        places = torch.arange(1, size + 1, dtype=torch.int64, device=state.device)
        words = mixed(state[:, None] + _STRIDE * places)
        return _shifted(words, 11).double() * 2.0**-53


def normal(uniform: Tensor) -> Tensor:
    """Turns uniform numbers [N, 2 size] into standard normal ones, [N, size] (Box & Muller 1958)."""
    radius, angle = uniform.chunk(2, dim=1)
    return torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * torch.pi * angle)


def mixed(words: Tensor) -> Tensor:
    """Applies the output function of SplitMix64; see `simulators.noise.mixed`."""
    words = (words ^ _shifted(words, 30)) * _FIRST_FACTOR
    words = (words ^ _shifted(words, 27)) * _SECOND_FACTOR
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shifts right as for unsigned numbers: the sign bit is not replicated."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
