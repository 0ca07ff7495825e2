"""Reduces pictures: each new pixel averages the area it covers, computed by two matrix products for all lanes."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Simulator, Space, Step
from simulators.wrappers.wrapper import Wrapper

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in gray (ITU-R BT.601)."""


@dataclass(frozen=True)
class PixelsOptions:
    """Options of a specification."""

    height: int = 84
    width: int = 84
    grayscale: bool = True
    """Whether red, green and blue become one gray channel."""


def area_weights(size: int, smaller: int) -> Tensor:
    """Computes the weight of each of `size` pixels in each of `smaller` ones, by the area they share.

    Returns:
        [smaller, size] float32; rows sum to 1.
    """
    scale = size / smaller
    begin = torch.arange(smaller, dtype=torch.float64)[:, None] * scale
    pixel = torch.arange(size, dtype=torch.float64)
    shared = torch.minimum(begin + scale, pixel + 1) - torch.maximum(begin, pixel)
    return (shared.clamp(min=0.0) / scale).float()


class Pixels(Wrapper):
    """Pictures [H, W, C] or [H, W] of bytes become [1 or C, height, width]; a pixel is the mean of the area it covers.

    The result is rounded once, after conversion to gray and resizing: within one level of cv2.INTER_AREA.
    """

    def __init__(self, inner: Simulator, options: PixelsOptions, owner: str, device: torch.device) -> None:
        """Wraps a simulator.

        Raises:
            InvalidArgument: The observations are not pictures, or smaller than the requested size.
        """
        super().__init__(inner)
        space = inner.observation_space
        channels = space.shape[2] if len(space.shape) == 3 else 1
        if space.dtype != torch.uint8 or len(space.shape) not in (2, 3) or channels not in (1, 3):
            raise InvalidArgument(
                f"{owner}: observations of shape {space.shape} and type {space.dtype} are not pictures of bytes "
                "[height, width, 1 or 3 channels]"
            )
        for name, size in zip(("height", "width"), space.shape[:2], strict=True):
            if not 1 <= getattr(options, name) <= size:
                raise InvalidArgument(
                    f"{owner}: option {name!r} must be between 1 and {size}, the size of the picture, not "
                    f"{getattr(options, name)}"
                )
        self._channels = channels
        self._gray = torch.tensor(LUMA, device=device) if options.grayscale and channels == 3 else None
        kept = 1 if self._gray is not None else channels
        shape = (kept, options.height, options.width)
        elements = torch.Size(shape).numel()
        self.observation_space = Space("continuous", shape, torch.uint8, (0.0,) * elements, (255.0,) * elements)
        self._rows = area_weights(space.shape[0], options.height).to(device)
        self._columns = area_weights(space.shape[1], options.width).T.contiguous().to(device)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        return self._small(self.inner.reset(seed))

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        step = self.inner.step(action)
        observation = self._small(step.observation)
        # Checking whether an episode ended would wait for an accelerator; resizing does not.
        if step.terminated.is_cpu and not (step.terminated | step.truncated).any():
            return replace(step, observation=observation, final_observation=observation)
        return replace(step, observation=observation, final_observation=self._small(step.final_observation))

    def _small(self, picture: Tensor) -> Tensor:
        numbers = picture.float()
        if self._gray is not None:
            numbers = (numbers @ self._gray)[:, None]
        else:
            numbers = numbers.view(*picture.shape[:3], self._channels).movedim(3, 1)
        return (self._rows @ numbers @ self._columns).round_().clamp_(0, 255).byte()
