"""Compiles the kernels of MuJoCo Warp for GPUs on a machine without one, for instance when an image is built.

    python -m simulators.warp.kernels /opt/kernels --architectures 80 90 100

Which kernels a step needs is found by taking one on the processor with every launch left out. Warp's compiler is part
of its package and needs no driver. `simulators.warp.kernel_cache` provides the result to the processes of a pod.
"""

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import warp
from warp._src import context

from simulators.warp.engine import WarpPhysics
from simulators.warp.models import load_body
from simulators.warp.options import STYLES

ARCHITECTURES = (80, 86, 89, 90, 100, 120)
"""A100; RTX A and 30; L4, L40 and RTX 40; H100 and H200; B200; RTX PRO 6000 and RTX 50."""
BLOCK_DIM = 256
"""Warp's default number of threads of a block."""
MULTIPROCESSORS = 132
"""Of an H100. It changes how work is divided among launches, not the kernels."""


class ModuleVariants(dict[tuple[Any, int], None]):
    """The modules that a step launches kernels of, each with the number of threads of a block, in order of use."""

    def names(self) -> set[str]:
        """Returns the names of the folders in which Warp keeps them."""
        return {module.get_module_identifier(block_dim) for module, block_dim in self}


class _ProcessorAsGpu:
    """A device of the processor that claims to be a GPU: some launches differ between the two."""

    is_cuda, is_cpu, sm_count = True, False, MULTIPROCESSORS

    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


@contextlib.contextmanager
def launches_left_out() -> Iterator[ModuleVariants]:
    """Collects the modules of all kernels that the block would launch on a GPU, and launches none of them."""
    variants = ModuleVariants()

    def load(module: Any, device: object, block_dim: int | None = None, *_: object, **__: object) -> None:
        variants[(module, block_dim or module.options["block_dim"])] = None

    def run_once(condition: object, *, while_body: Callable[..., object], **arguments: object) -> None:
        while_body(**arguments)

    def run_branch(condition: object, on_true: Any = None, on_false: Any = None, **arguments: object) -> None:
        for branch in filter(None, (on_true, on_false)):
            branch(**arguments)

    with contextlib.ExitStack() as patches:
        for owner, name, replacement in (
            # Without a loaded module, Warp's launch returns after it has chosen the overload.
            (context.Module, "load", load),
            # On the processor a block has one thread.
            (context, "_resolve_launch_block_dim", lambda device, block_dim: block_dim or BLOCK_DIM),
            (warp, "capture_while", run_once),
            (warp, "capture_if", run_branch),
        ):
            patches.enter_context(_replaced(owner, name, replacement))
        yield variants


@contextlib.contextmanager
def _replaced(owner: Any, name: str, replacement: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _as_on_gpu() -> contextlib.AbstractContextManager[None]:
    """Makes MuJoCo Warp choose launches as on a GPU."""
    get_device = warp.get_device
    return _replaced(warp, "get_device", lambda *arguments: _ProcessorAsGpu(get_device(*arguments)))


def needed_modules(bodies: Sequence[tuple[str, str]]) -> ModuleVariants:
    """Returns the modules that simulations of bodies need; the number of simulations makes no difference.

    Args:
        bodies: Names and styles; see simulators.warp.models.load_body.
    """
    warp.init()  # type: ignore[no-untyped-call]
    with launches_left_out() as variants:
        for name, style in bodies:
            physics = WarpPhysics(load_body(name, style), 1, torch.device("cpu"), substeps=1, kinematics=True)
            with _as_on_gpu():
                physics.launch_step()
                physics.launch_kinematics()
    return variants


def all_bodies() -> list[tuple[str, str]]:
    """Returns all bodies in all styles."""
    return [(name, style) for name, styles in STYLES.items() for style in styles]


def compile_kernels(variants: ModuleVariants, folder: Path, architectures: Sequence[int]) -> int:
    """Compiles modules for GPUs, unless the folder has them, and deletes everything else in it.

    Args:
        variants: The modules.
        folder: Gets a folder for each module.
        architectures: Compute capabilities, 90 for 9.0.

    Returns:
        Number of compiled files in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = variants.names()
    for other in folder.iterdir():
        if other.name not in names:
            shutil.rmtree(other)

    def compile_one(case: tuple[tuple[Any, int], int]) -> None:
        (module, block_dim), architecture = case
        # The name of the file is that for which Warp looks on a GPU of this architecture.
        options = module.resolved_options[block_dim]
        target = folder / module.get_module_identifier(block_dim)
        module._compile(None, target, output_arch=architecture, use_ptx=False, options=options)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(compile_one, [(variant, each) for each in architectures for variant in variants]))
    for source in folder.glob("*/*.cu"):
        source.unlink()
    return len(list(folder.glob("*/*.cubin")))


def main(arguments: Sequence[str]) -> int:
    """Compiles the kernels of all bodies; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--architectures", type=int, nargs="*", default=ARCHITECTURES, metavar="N")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.architectures) - set(warp.get_cuda_supported_archs()))
    if unknown:
        print(f"error: --architectures: Warp cannot compile for {', '.join(map(str, unknown))}", file=sys.stderr)
        return 2
    variants = needed_modules(all_bodies())
    files = compile_kernels(variants, options.folder, options.architectures)
    print(f"{len(variants)} modules for {len(options.architectures)} architectures, {files} files in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
