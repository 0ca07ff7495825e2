"""Makes pictures small: by area, as products with two matrices, for all lanes at once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Simulator, Space, Step
from simulators.wrappers.wrapper import Wrapper

LUMA = (0.299, 0.587, 0.114)
"""What red, green and blue contribute to grey (ITU-R BT.601)."""


@dataclass(frozen=True)
class PixelsOptions:
    """What a specification can set."""

    height: int = 84
    width: int = 84
    grayscale: bool = True
    """One channel in the place of red, green and blue."""


def area_weights(size: int, smaller: int) -> Tensor:
    """What each of `size` pixels contributes to each of `smaller` ones, by the area they share.

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

    Rounded once, after grey and size: within one level of cv2.INTER_AREA.
    """

    def __init__(self, inner: Simulator, options: PixelsOptions, owner: str, device: torch.device) -> None:
        """Wraps.

        Raises:
            InvalidArgument: The observations are no pictures, or smaller than what is asked for.
        """
        super().__init__(inner)
        space = inner.observation_space
        channels = space.shape[2] if len(space.shape) == 3 else 1
        if space.dtype != torch.uint8 or len(space.shape) not in (2, 3) or channels not in (1, 3):
            raise InvalidArgument(
                f"{owner}: observations of shape {space.shape} and type {space.dtype} are no pictures of bytes "
                "[height, width, 1 or 3 channels]"
            )
        for name, size in zip(("height", "width"), space.shape[:2], strict=True):
            if not 1 <= getattr(options, name) <= size:
                raise InvalidArgument(
                    f"{owner}: option {name!r} must be between 1 and {size}, that of the picture, not "
                    f"{getattr(options, name)}"
                )
        self._channels = channels
        self._grey = torch.tensor(LUMA, device=device) if options.grayscale and channels == 3 else None
        kept = 1 if self._grey is not None else channels
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
        # Asking whether an episode ended makes an accelerator wait; the work does not.
        if step.terminated.is_cpu and not (step.terminated | step.truncated).any():
            return replace(step, observation=observation, final_observation=observation)
        return replace(step, observation=observation, final_observation=self._small(step.final_observation))

    def _small(self, picture: Tensor) -> Tensor:
        numbers = picture.float()
        if self._grey is not None:
            numbers = (numbers @ self._grey)[:, None]
        else:
            numbers = numbers.view(*picture.shape[:3], self._channels).movedim(3, 1)
        return (self._rows @ numbers @ self._columns).round_().clamp_(0, 255).byte()
