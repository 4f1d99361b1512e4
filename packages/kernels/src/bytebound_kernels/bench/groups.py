"""The groups of the benchmark, one per family of ops, each in a file of its own.

A group is a function that returns metrics. Its file is imported when the group runs, since some
need PyTorch or Triton. It is given those of these that it has as parameters:

    backend     device memory, events and graphs; let go of after the group
    device      the card
    samples     how many of each metric
    read_gb_s   the card's measured read bandwidth
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bytebound_kernels.bench.report import Metric

__all__ = ["GROUPS", "Group"]


@dataclass(frozen=True, slots=True)
class Group:
    """A family of ops that is measured together."""

    name: str
    what: str  # in a few words
    module: str  # of this folder
    function: str

    def load(self) -> Callable[..., list[Metric]]:
        """Import the function.

        Raises:
            ImportError: something that it needs is not installed.
        """
        module = import_module(f"bytebound_kernels.bench.{self.module}")
        function: Callable[..., list[Metric]] = getattr(module, self.function)
        return function

    def measure(self, available: dict[str, Any]) -> list[Metric]:
        """Run the function with what it takes of ``available``."""
        function = self.load()
        parameters = inspect.signature(function).parameters
        return function(**{name: available[name] for name in parameters})


GROUPS = (
    Group("rms_norm", "RMSNorm", "cases", "measure_rms_norms"),
    Group(
        "rms_norm_project",
        "RMSNorm with a small product",
        "rms_norm_project",
        "measure_rms_norm_project",
    ),
    Group("w4", "4-bit matrix times a few rows", "w4_matvec", "measure_w4_matvec"),
    Group("w4_pack", "4-bit matrix into packed form", "w4_pack", "measure_w4_pack"),
    Group("dense", "16-bit matrix times a few rows", "dense_matvec", "measure_dense_matvec"),
    Group("gdn_step", "Gated DeltaNet of a decode step", "gdn_step", "measure_gdn_step"),
    Group(
        "attention",
        "gated attention of a decode step",
        "attention_decode",
        "measure_attention_decode",
    ),
    Group(
        "weight_stream",
        "layers of a decode step as one kernel",
        "weight_stream",
        "measure_weight_stream",
    ),
    Group(
        "small",
        "gather, argmax, sampling, history, acceptance, windows",
        "small_ops",
        "measure_small_ops",
    ),
    Group("prefill", "passes over many tokens (PyTorch, Triton)", "prefill", "measure_prefill"),
    Group("w4_matmul", "4-bit matrix times many rows", "w4_matmul", "measure_w4_matmul"),
)
