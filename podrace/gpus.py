"""Reads the GPUs of this machine from the driver, and resolves the names by which users and launchers choose them.

A GPU is named by its UUID (`GPU-...`), an instance of a partitioned GPU by its own (`MIG-...`). Numbers are ambiguous:
the driver's library NVML counts in the order of the PCI bus, CUDA puts the fastest GPU first, and a container counts
only its own GPUs.
"""

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from podrace.errors import InvalidArgument, Unavailable

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"
MIG = "MIG-"
GIB = 1 << 30
NONE = frozenset({"", "-1", "none", "void", "nodevfiles"})
"""Values of CUDA_VISIBLE_DEVICES that hide every GPU."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, or one instance of a partitioned GPU, as CUDA can use it."""

    uuid: str
    model: str
    number: int
    """Number of the GPU in the order of the PCI bus; all instances of a partitioned GPU have its number."""
    memory_bytes: int
    """0 if the GPU has none of its own and uses that of the host (GB10, Jetson)."""
    free_bytes: int
    uncorrected_errors: int = 0
    """Uncorrected ECC errors since the driver was loaded; 0 if the GPU does not count them."""
    fault: str = ""
    """Why the GPU must not be used until it was reset or replaced; empty if it may be used."""
    pids: tuple[int, ...] = ()
    """Processes that compute on it, as far as this process may see them."""

    @property
    def is_instance(self) -> bool:
        """Whether it is an instance of a partitioned GPU; a process can use only one of these."""
        return self.uuid.startswith(MIG)

    @property
    def memory(self) -> str:
        """Its memory as a text."""
        if not self.memory_bytes:
            return "host memory"
        return f"{self.free_bytes / GIB:.1f} of {self.memory_bytes / GIB:.1f} GiB free"


@dataclass(frozen=True)
class Reading:
    """What the driver reported."""

    gpus: tuple[Gpu, ...] = ()
    """In the order of the PCI bus; instances of a partitioned GPU replace it."""
    problems: tuple[str, ...] = ()
    """What could not be read, and partitioned GPUs without instances."""
    answered: bool = True
    """Whether the driver answered; if not, the GPUs are not known. Without a driver there are none."""


@dataclass(frozen=True)
class GpuSample:
    """How much of a GPU is used, by all processes."""

    uuid: str
    utilization_percent: int | None
    """Share of the driver's last sampling period in which it computed; None: not reported (instances of a GPU)."""
    memory_used_bytes: int | None
    """None if the GPU uses host memory."""
    memory_total_bytes: int | None


@dataclass(frozen=True)
class Selection:
    """GPUs that a list of names selects."""

    gpus: tuple[Gpu, ...]
    """In the order of the list."""
    unknown: tuple[str, ...] = ()
    """Names that select no GPU."""
    ambiguous: tuple[str, ...] = field(default=())
    """Numbers that may mean different GPUs."""


def read_gpus(nvml: Any = pynvml) -> Reading:
    """Reads all GPUs that the driver shows to this process; without a driver there are none.

    Args:
        nvml: The module `pynvml`, or one with the same functions.
    """
    problem = _driver_problem(nvml)
    if problem is not None:
        return Reading(problems=(problem,) if problem else (), answered=not problem)
    try:
        handles, problems = _handles(nvml)
    except nvml.NVMLError as error:
        return Reading(problems=(_no_answer(error),), answered=False)
    gpus: list[Gpu] = []
    for number, handle in enumerate(handles):
        try:
            if _partitioned(nvml, handle):
                found = list(_instances(nvml, handle, number))
            else:
                found = [_gpu(nvml, handle, number)]
        except nvml.NVMLError as error:
            problems.append(f"GPU {number} does not answer: {error}")
            continue
        if not found:
            problems.append(f"GPU {number} is partitioned (MIG), but has no instances: create some with nvidia-smi mig")
        gpus += found
    return Reading(tuple(gpus), tuple(problems))


def sample_gpus(uuids: Sequence[str], nvml: Any = pynvml) -> tuple[GpuSample, ...]:
    """Reads how much of the GPUs is used. Blocks as long as the driver does.

    Args:
        uuids: UUIDs of GPUs, or of instances of partitioned GPUs.
        nvml: The module `pynvml`, or one with the same functions.

    Raises:
        Unavailable: The driver does not answer.
    """
    problem = _driver_problem(nvml)
    if problem is not None:
        raise Unavailable(problem or "there is no NVIDIA driver")
    try:
        return tuple(_sample(nvml, uuid) for uuid in uuids)
    except nvml.NVMLError as error:
        raise Unavailable(f"the NVIDIA driver does not report the use of the GPUs: {error}") from error


def _sample(nvml: Any, uuid: str) -> GpuSample:
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        percent = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError_NotSupported:
        percent = None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError_NotSupported:
        return GpuSample(uuid, percent, None, None)
    return GpuSample(uuid, percent, int(memory.total) - int(memory.free), int(memory.total))


def select(gpus: Sequence[Gpu], names: Sequence[str], *, numbers_are_clear: bool = True) -> Selection:
    """Selects GPUs by name: a UUID or an unambiguous beginning of one, or a number in the order of the PCI bus.

    Args:
        gpus: GPUs in the order of the PCI bus.
        names: The names.
        numbers_are_clear: Whether numbers mean the order of the PCI bus. If not, they are ambiguous unless all GPUs are
            of one model.
    """
    chosen: list[Gpu] = []
    unknown, ambiguous = [], []
    for name in names:
        found = [gpu for gpu in gpus if _matches(gpu, name)]
        if name.isdigit() and found and not numbers_are_clear and len({gpu.model for gpu in gpus}) > 1:
            ambiguous.append(name)
        elif len(found) == 1:
            chosen += [gpu for gpu in found if gpu not in chosen]
        elif found:
            ambiguous.append(name)
        else:
            unknown.append(name)
    return Selection(tuple(chosen), tuple(unknown), tuple(ambiguous))


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str] = os.environ) -> Selection:
    """Selects the GPUs that CUDA_VISIBLE_DEVICES lists; all if it is not set."""
    value = environ.get(VISIBLE)
    if value is None:
        return Selection(tuple(gpus))
    names = [name.strip() for name in value.split(",")]
    if names[0].lower() in NONE:
        return Selection(())
    return select(gpus, names, numbers_are_clear=environ.get(ORDER) == PCI_ORDER)


def check_selection(selection: Selection, gpus: Sequence[Gpu], key: str, value: str) -> None:
    """Rejects names that select no GPU, or may mean several.

    Raises:
        InvalidArgument: There is such a name.
    """
    present = ", ".join(f"{gpu.uuid} ({gpu.model}, number {gpu.number})" for gpu in gpus) or "none"
    if selection.unknown:
        raise InvalidArgument(
            f"{key} = {value!r}: there is no GPU {selection.unknown[0]!r}; the driver shows: {present}"
        )
    if selection.ambiguous:
        raise InvalidArgument(
            f"{key} = {value!r}: {selection.ambiguous[0]!r} may mean several GPUs; name them by UUID, or set"
            f" {ORDER}={PCI_ORDER} if the GPUs are of different models; the driver shows: {present}"
        )


def _matches(gpu: Gpu, name: str) -> bool:
    if name.isdigit():
        return gpu.number == int(name)
    return len(name) > len(MIG) and gpu.uuid.lower().startswith(name.lower())


def _driver_problem(nvml: Any) -> str | None:
    """Why the driver cannot be asked: empty if there is none, None if it can."""
    try:
        _initialize(nvml)
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        return ""
    except nvml.NVMLError as error:
        return _no_answer(error)
    return None


@functools.cache
def _initialize(nvml: Any) -> None:
    """Connects to the driver once; after an error the next call tries again, because a driver may be loaded later."""
    nvml.nvmlInit()


def _no_answer(error: Exception) -> str:
    return f"the NVIDIA driver does not answer, so no GPU is used: {error}"


def _handles(nvml: Any) -> tuple[list[Any], list[str]]:
    """Handles of the GPUs in the order of the PCI bus, and what was wrong with others."""
    found, problems = [], []
    for index in range(int(nvml.nvmlDeviceGetCount())):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found.append((_text(nvml.nvmlDeviceGetPciInfo(handle).busId), handle))
        except nvml.NVMLError as error:
            problems.append(f"the GPU with index {index} does not answer: {error}")
    return [handle for _, handle in sorted(found, key=lambda pair: pair[0])], problems


def _partitioned(nvml: Any, handle: Any) -> bool:
    mode: Sequence[int] = _optional(nvml, nvml.nvmlDeviceGetMigMode, handle, default=(0, 0))
    return bool(mode[0] == nvml.NVML_DEVICE_MIG_ENABLE)


def _instances(nvml: Any, handle: Any, number: int) -> Iterator[Gpu]:
    for index in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError:
            # Not created.
            continue
        yield _gpu(nvml, instance, number, parent=handle)


def _gpu(nvml: Any, handle: Any, number: int, *, parent: Any = None) -> Gpu:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = int(memory.total), int(memory.free)
    except nvml.NVMLError_NotSupported:
        total = free = 0
    # Errors are counted for the whole GPU.
    whole = handle if parent is None else parent
    errors = _optional(
        nvml,
        nvml.nvmlDeviceGetTotalEccErrors,
        whole,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nvml.NVML_VOLATILE_ECC,
        default=0,
    )
    processes = _optional(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle, default=())
    return Gpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        model=_text(nvml.nvmlDeviceGetName(handle)),
        number=number,
        memory_bytes=total,
        free_bytes=free,
        uncorrected_errors=int(errors),
        fault=_fault(_optional(nvml, nvml.nvmlDeviceGetRemappedRows, whole, default=(0, 0, 0, 0))),
        pids=tuple(int(process.pid) for process in processes),
    )


def _fault(remapped: Sequence[int]) -> str:
    """Interprets the counts of remapped memory rows: correctable, uncorrectable, pending, failed."""
    _, _, pending, failed = remapped
    if failed:
        return "remapping a faulty row of its memory failed; it has to be replaced"
    return "a faulty row of its memory is remapped at the next reset; reset it" if pending else ""


def _optional(nvml: Any, function: Any, *arguments: Any, default: Any) -> Any:
    """Calls a function that not every GPU supports and not every user may call."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return default


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
