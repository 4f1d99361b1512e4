"""Whether CUDA can be used here, and why not.

Knows the build (what is compiled in) and the machine (driver, devices), and nothing of tensors.
Nothing is asked of the driver at import: that would break a later fork and fix the list of devices
before the caller could choose with CUDA_VISIBLE_DEVICES. The first op call, or cuda_status(), asks
once, and the process keeps the answer.
"""

import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import SupportsIndex

from bytebound_kernels import _native
from bytebound_kernels.errors import CudaUnavailableError, InvalidArgumentError

__all__ = ["DeviceInfo", "cuda_problem", "cuda_status", "device_info", "devices", "require_cuda"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One CUDA device that this process sees.

    Attributes:
        index: the ordinal, as CUDA_VISIBLE_DEVICES leaves it.
        name: the marketing name, "NVIDIA H200".
        capability: the compute capability, (9, 0).
        num_sms: multiprocessors.
        l2_bytes: size of the L2 cache.
        memory_bytes: size of the device memory.
    """

    index: int
    name: str
    capability: tuple[int, int]
    num_sms: int
    l2_bytes: int
    memory_bytes: int

    @property
    def arch(self) -> str:
        """The architecture as compilers spell it, "sm_90"."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def __str__(self) -> str:
        return f"{self.name} ({self.arch})"


@dataclass(frozen=True, slots=True)
class _Availability:
    """The answer that a process keeps."""

    problem: str  # why no device is usable; empty: at least one is
    devices: tuple[DeviceInfo, ...]
    problem_of_device: Mapping[int, str]  # only the devices that have a problem


def covers(compiled_archs: Iterable[str], capability: tuple[int, int]) -> bool:
    """Whether one of "sm_90", "sm_90a", "sm_100f", "compute_120" runs on a compute capability.

    Machine code runs within its major version from its own minor version on; with the suffix a on
    exactly its own architecture; with f within its family, which is the same major version. PTX
    (compute_*) is compiled by the driver for its own version and all later ones.
    """
    for name in compiled_archs:
        kind, _, digits = name.partition("_")
        suffix = digits[-1] if digits[-1] in "af" else ""
        number = int(digits.removesuffix(suffix))
        built_for = (number // 10, number % 10)
        same_major = built_for[0] == capability[0]
        if suffix == "a":
            runs = built_for == capability
        elif suffix == "f" or kind == "sm":
            runs = same_major and built_for[1] <= capability[1]
        else:
            runs = built_for <= capability
        if runs:
            return True
    return False


def _driver_problem(probe: "_native.ProbeRecord") -> str:
    error, driver = probe["error"], probe["driver_version"]
    cause = f"{error}: {probe['error_text']}"
    if driver == 0:
        return (
            f"no CUDA driver is installed ({cause}). Install an NVIDIA driver that supports "
            f"CUDA {_native.cuda_toolkit_version}."
        )
    if error == "cudaErrorInsufficientDriver":
        return (
            f"the driver is too old: it supports CUDA {driver // 1000}.{driver % 1000 // 10}, this "
            f"build needs {_native.cuda_toolkit_version} ({cause}). Update the NVIDIA driver."
        )
    if error == "cudaErrorInitializationError":
        return (
            f"the driver cannot be initialised ({cause}). A process forked after its parent used "
            f"CUDA cannot use it: start it with the spawn method instead."
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hint = "" if visible is None else f" CUDA_VISIBLE_DEVICES is {visible!r}."
    if error in ("ok", "cudaErrorNoDevice"):
        return f"a CUDA driver is installed, but no CUDA device is visible ({cause}).{hint}"
    return f"the CUDA devices cannot be listed ({cause}).{hint}"


def _judge(probe: "_native.ProbeRecord", compiled_archs: tuple[str, ...]) -> _Availability:
    if probe["error"] != "ok" or not probe["devices"]:
        return _Availability(_driver_problem(probe), (), {})
    found = tuple(DeviceInfo(**record) for record in probe["devices"])
    problems = {
        device.index: f"no code for this GPU's architecture: {device} is device {device.index}, "
        f"and this build holds {', '.join(compiled_archs)}. Install a wheel for {device.arch}, or "
        f"rebuild with BYTEBOUND_CUDA_ARCHS={device.arch.removeprefix('sm_')}-real."
        for device in found
        if not covers(compiled_archs, device.capability)
    }
    unusable = len(problems) == len(found)
    return _Availability(" ".join(problems.values()) if unusable else "", found, problems)


@cache
def _availability() -> _Availability:
    if not _native.built_with_cuda:
        reason = (
            f"this build of bytebound-kernels has no CUDA code: {_native.no_cuda_reason}. Install "
            f"a CUDA wheel, or rebuild with BYTEBOUND_CUDA=ON."
        )
        return _Availability(reason, (), {})
    return _judge(_native.probe(), _native.compiled_archs)


# A forked child is another process: the answer of its parent does not hold for it.
os.register_at_fork(after_in_child=_availability.cache_clear)


def cuda_problem() -> str | None:
    """Return why no visible CUDA device can run this build's ops, or None where one can."""
    return _availability().problem or None


def cuda_status() -> str:
    """Say in one line whether CUDA is usable here, or why not.

    Asks the driver at the first call, so do not call it before a fork. The reasons: a build without
    CUDA code, no driver, a driver that is too old, no visible device, a GPU for whose architecture
    this build holds no code.

    Returns:
        "usable: ..." with the devices and the build, or "not usable: ..." with the reason and what
        to do about it.
    """
    found = _availability()
    if found.problem:
        return f"not usable: {found.problem}"
    names = ", ".join(str(d) for d in found.devices if d.index not in found.problem_of_device)
    archs = ", ".join(_native.compiled_archs)
    return f"usable: {names}; built with CUDA {_native.cuda_toolkit_version} for {archs}"


def devices() -> tuple[DeviceInfo, ...]:
    """List the CUDA devices that this process sees; empty where there is none."""
    return _availability().devices


def require_cuda(op: str, device: int | None = None) -> None:
    """Raise unless an op can run here.

    Args:
        op: the name that the message begins with.
        device: the ordinal of the device that is to run it; None: any.

    Raises:
        CudaUnavailableError: with the text of cuda_status(), or because there is no such device.
    """
    found = _availability()
    problem = found.problem
    if not problem and device is not None:
        index = _ordinal(device, found.devices)
        if index is None:
            raise CudaUnavailableError(f"{op}: {_no_such_device(device, found.devices)}")
        problem = found.problem_of_device.get(index, "")
    if problem:
        raise CudaUnavailableError(f"{op}: CUDA is not usable: {problem}")


def device_info(op: str, device: int) -> DeviceInfo:
    """Return what is known of a device, whether or not this build has code for it.

    Raises:
        CudaUnavailableError: no device is visible.
        InvalidArgumentError: there is no such device.
    """
    found = devices()
    if not found:
        require_cuda(op)
    index = _ordinal(device, found)
    if index is None:
        raise InvalidArgumentError(f"{op}: {_no_such_device(device, found)}")
    return found[index]


def _ordinal(device: object, found: tuple[DeviceInfo, ...]) -> int | None:
    """Return the number of a visible device as an int, None where it is none."""
    if isinstance(device, bool) or not isinstance(device, SupportsIndex):
        return None
    try:
        index = operator.index(device)
    except TypeError:  # an array of several numbers
        return None
    return index if 0 <= index < len(found) else None


def _no_such_device(device: object, found: tuple[DeviceInfo, ...]) -> str:
    expected = "0" if len(found) == 1 else f"0 to {len(found) - 1}"
    return f"device is {device!r}; expected {expected}, of the devices that this process sees"
