"""Compares what a GPU computes with what the processor computes, and with what the GPU computed before.

Every algorithm is updated from one state with one experience and the same random numbers. The order of floating-point
sums differs between devices, so policies are equal up to rounding. Adam amplifies that: it divides a gradient by its
own size, so the sign of a gradient near zero decides a whole step. The measure is therefore the distance of the two
policies as a share of the distance that training moved them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms import ALGORITHMS
from agentpod.algorithms.matmul_precision import matmul_precision
from agentpod.experience.prioritized_sampling import PriorityTree
from agentpod.models.cnn import TORSOS
from agentpod.models.normalizer import RunningMoments
from agentpod.qualification import trials
from agentpod.qualification.bench import Bench
from agentpod.qualification.shared_random import SharedRandom
from podrace.qualification.findings import Finding, Grade

PART = "numerics"
LARGEST_SHARE = 0.05
"""Largest distance of two policies, as a share of the distance that training moved them."""
LARGEST_ERROR = 1e-9
"""Largest relative error of sums in float64."""
LARGEST_CONVOLUTION_ERROR = 5e-5
"""Largest error of a convolution in float32, relative to its largest element; that of TF32 is 2e-4 or more."""
REMEDY = "unset NVIDIA_TF32_OVERRIDE, check the GPU with `dcgmi diag -r 3`"
IMAGES, IMAGE_SHAPE = 8, (4, 84, 84)
LEAVES, BATCH = 100_000, 4096


@dataclass(frozen=True)
class Agreement:
    """How two devices agree about the updates of an algorithm."""

    algorithm: str
    device: str
    share: float
    """Distance of the policies as a share of the distance moved."""
    moved: float
    """Distance that training moved the policy on the processor."""
    repeated: bool
    """Whether a second run on the device gave the same bits."""


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades all algorithms on the first device, then convolutions, sums and priorities."""
    device = bench.devices[0]
    for name in ALGORITHMS:
        yield from judge(measure(name, device))
    yield judge_error("convolutions", convolutions_error(device), LARGEST_CONVOLUTION_ERROR)
    yield judge_error("observation statistics", moments_error(device))
    yield judge_error("replay priorities", priorities_error(device))


def judge(found: Agreement) -> Iterator[Finding]:
    """Grades the updates of an algorithm. Pure."""
    near = found.moved > 0 and found.share <= LARGEST_SHARE
    yield Finding(
        PART,
        f"{found.algorithm}, update",
        Grade.PASS if near else Grade.FAIL,
        f"differs by {found.share:.2%} of the distance moved" if found.moved > 0 else "the update changed nothing",
        f"at most {LARGEST_SHARE:.0%}",
        remedy="" if near else REMEDY,
    )
    yield Finding(
        PART,
        f"{found.algorithm}, repeated",
        Grade.PASS if found.repeated else Grade.FAIL,
        "the same bits" if found.repeated else "other bits",
        "the same bits",
        remedy="" if found.repeated else "set CUBLAS_WORKSPACE_CONFIG=:4096:8; otherwise results are not reproducible",
    )


def judge_error(name: str, error: float, largest: float = LARGEST_ERROR) -> Finding:
    """Grades the relative error of a computation, by default in float64. Pure."""
    small = error <= largest
    grade, remedy = (Grade.PASS, "") if small else (Grade.FAIL, REMEDY)
    return Finding(PART, name, grade, f"relative error {error:.1e}", f"at most {largest:g}", remedy=remedy)


def agreement(
    algorithm: str, device: str, host: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor]
) -> Agreement:
    """Compares policies [P] before and after each update: on the processor, and twice on the device. Pure."""
    moved = float((host[-1] - host[0]).norm())
    distance = float((first[-1] - host[-1]).norm())
    repeated = all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    # A distance that is not a number does not agree either.
    share = distance / moved if moved > 0 and distance == distance else float("inf")
    return Agreement(algorithm, device, share, moved, repeated)


def measure(name: str, device: str) -> Agreement:
    """Updates an algorithm on the processor and twice on a device."""
    experience = trials.collected(name)
    with SharedRandom():
        _, host = trials.updated(experience, "cpu")
        _, first = trials.updated(experience, device)
    with SharedRandom():
        _, second = trials.updated(experience, device)
    return agreement(name, device, host, first, second)


def convolutions_error(device: str) -> float:
    """Returns the largest error of the convolutions of a network for images, and of their gradients.

    It is relative to the largest element of each result, with the precision of an update in `float32`.
    """
    generator, (channels, size, _), errors = torch.Generator().manual_seed(3), IMAGE_SHAPE, list[float]()
    for layer in TORSOS["nature"]:
        image = torch.randn(IMAGES, channels, size, size, generator=generator)
        weight = torch.randn(layer.channels, channels, layer.kernel, layer.kernel, generator=generator)
        expected = _convolved(image.double(), weight.double(), layer.stride)
        with matmul_precision("float32", (), device):
            found = _convolved(image.to(device), weight.to(device), layer.stride)
        for one, other in zip(found, expected, strict=True):
            errors.append(float((one.cpu() - other).abs().max() / other.abs().max()))
        channels, size = layer.channels, expected[0].shape[-1]
    return max(errors)


def _convolved(image: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, ...]:
    """Returns a convolution and the gradients of half the sum of its squares."""
    image, weight = image.requires_grad_(), weight.requires_grad_()
    output = torch.conv2d(image, weight, None, stride)
    return output.detach(), *torch.autograd.grad(output, (image, weight), output.detach())


def moments_error(device: str) -> float:
    """Returns the relative error of a variance whose mean is a million times as large as the deviation."""
    samples = torch.randn(100_000, 8, generator=torch.Generator().manual_seed(1)).double() + 1e6
    expected = RunningMoments.of(samples[:40_000]).merge(RunningMoments.of(samples[40_000:])).variance
    there = samples.to(device)
    found = RunningMoments.of(there[:40_000]).merge(RunningMoments.of(there[40_000:])).variance.cpu()
    return _relative_error(found, expected)


def priorities_error(device: str) -> float:
    """Returns the relative error of sampling probabilities; infinite if other steps are sampled."""
    host, there = (_sampled(where) for where in ("cpu", device))
    same = (host[0] == there[0]).float().mean()
    # A point on the boundary of two leaves may fall to either, by rounding.
    if same < 1.0 - 10 / BATCH:
        return float("inf")
    return float(((there[2] - host[2]).abs() / host[2]).max())


def _sampled(device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sampled leaves, their probabilities, and the sums of the tree, on the processor."""
    tree = PriorityTree(LEAVES, 0.6, device)
    tree.admit(0, LEAVES)
    generator = torch.Generator(device).manual_seed(2)
    with SharedRandom():
        for _ in range(4):
            index = torch.randint(LEAVES, (BATCH,), generator=generator, device=device)
            error = torch.rand(BATCH, generator=generator, device=device)
            tree.update(index, error)
        index, probability = tree.sample(BATCH, generator)
    return index.cpu(), probability.cpu(), tree.leaves.cpu()


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected).abs() / expected.abs()).max())
