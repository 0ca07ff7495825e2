"""Draws the random numbers of a GPU on the processor, so that two devices can compute from the same ones.

A generator of CUDA and one of the processor return different numbers for the same seed. Without this, an update on a
GPU and one on the processor would sample different batches and could not be compared.

    with SharedRandom():
        algorithm.update(experience)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FACTORIES = (torch.rand, torch.randn, torch.randint, torch.randperm)
"""Functions that return new tensors; everything else with a generator fills its first argument."""


class SharedRandom(TorchFunctionMode):
    """Replaces each generator by one on the processor with the same seed, for calls within the block."""

    def __init__(self, *, always: bool = False) -> None:
        """Prepares the mode.

        Args:
            always: Whether generators of the processor are replaced too; for tests.
        """
        super().__init__()
        self._always = always
        # With the generators themselves, so that no number of one that was freed is reused.
        self._twins: dict[int, tuple[torch.Generator, torch.Generator]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls a function of torch, with a twin of its generator."""
        options = dict(kwargs or {})
        generator = options.get("generator")
        if generator is None or (generator.device.type == "cpu" and not self._always):
            return func(*args, **options)
        options["generator"] = self._twin(generator)
        if func in FACTORIES:
            device = options.pop("device", generator.device)
            return func(*args, **options).to(device)
        target = args[0]
        drawn = torch.empty(target.shape, dtype=target.dtype)
        func(drawn, *args[1:], **options)
        return target.copy_(drawn)

    def _twin(self, generator: torch.Generator) -> torch.Generator:
        if id(generator) not in self._twins:
            twin = torch.Generator().manual_seed(generator.initial_seed())
            self._twins[id(generator)] = generator, twin
        return self._twins[id(generator)][1]
