"""Networks of users, good and bad ones."""

from typing import Any

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """A network whose operations include those that ONNX files of users are made of."""

    def __init__(self, shape: tuple[int, ...], outputs: int, hidden_sizes: tuple[int, ...]) -> None:
        super().__init__()
        size = hidden_sizes[0]
        self.first, self.norm = nn.Linear(shape[0], size), nn.LayerNorm(size)
        self.second, self.last = nn.Linear(size, size), nn.Linear(2 * size, outputs)

    def forward(self, observation: Tensor) -> Tensor:
        x = nn.functional.silu(self.norm(self.first(observation)))
        x = torch.cat((x + nn.functional.gelu(self.second(x)), x * 0.5 - 1.0), -1)
        return self.last(x.flatten(1)) + x.mean(-1, keepdim=True)


class Pictures(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(shape[0], 4, 3, 2, 1), nn.ELU(), nn.Flatten(), nn.LazyLinear(outputs))
        self.layers(torch.zeros(1, *shape))

    def forward(self, observation: Tensor) -> Tensor:
        result: Tensor = self.layers(observation)
        return result


class Small(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], outputs)

    def forward(self, observation: Tensor) -> Any:
        return self.layer(observation)


class WrongShape(Small):
    def forward(self, observation: Tensor) -> Any:
        return self.layer(observation).sum(-1)


class Raising(Small):
    def forward(self, observation: Tensor) -> Any:
        raise RuntimeError("no\nway")


class Stateful(Small):
    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(shape, outputs)
        self.register_buffer("count", torch.zeros(()))


class Sorting(Small):
    def forward(self, observation: Tensor) -> Any:
        return self.layer(observation).sort(-1).values


class NoModule:
    pass
