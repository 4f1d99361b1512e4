"""GPTQ over a whole checkpoint, layer after layer, each on the outputs of the quantized ones.

The order: embedding, decoder layers, the output head on the normed hidden of the quantized body,
last the MTP head on that same hidden and the true next ids. Hidden states of all windows stay in
host memory; the device holds one layer at a time. With ``compensate`` the states of a 16-bit run
lie beside them (twice the memory, and both forms of the layer), and matrices are fitted to its
outputs. A run that continues takes all states through the layers already written, with the same
bits.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from bytebound import tensor_names as names
from bytebound.config import LayerType
from bytebound.reference.mtp import mtp_forward
from bytebound.reference.norm import rms_norm
from bytebound.reference.state import KvCache
from bytebound.weights import LayerWeights, ModelWeights, MtpWeights
from torch.nn.functional import linear

from bytebound_quant.capture import input_of
from bytebound_quant.embedded import EmbeddedWindows
from bytebound_quant.hessian import Hessian
from bytebound_quant.job import ReadPacked, Tick
from bytebound_quant.layer_job import LayerJob
from bytebound_quant.layers import (
    MTP_LAYER_PREFIX,
    build_layer,
    build_mtp,
    converted,
    field_tails,
)
from bytebound_quant.matrices import GptqOptions, Packed, Quantized, block_rows, fit_matrix
from bytebound_quant.packing import unpack
from bytebound_quant.plan import MTP_MATRIX, Plan, Unit
from bytebound_quant.source import Source

LEAST_DOUBT = 1e-4  # what a position counts at least for the output head


@dataclasses.dataclass(frozen=True, slots=True)
class CalibrationWindows:
    """The ids that the job runs on, and their description for the report."""

    ids: torch.Tensor
    """[n, T] int64."""
    summary: Mapping[str, Any]
    """``digest`` identifies the ids."""


class GptqMethod:
    """Quantizes unit by unit; holds the hidden states between two units."""

    name = "gptq"

    def __init__(
        self,
        source: Source,
        plan: Plan,
        windows: CalibrationWindows,
        options: GptqOptions,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.device = device
        self.calibration: Mapping[str, Any] | None = windows.summary
        self.options: Mapping[str, Any] = {
            **dataclasses.asdict(options),
            "dtype": str(dtype).removeprefix("torch."),
        }
        self._source = source
        self._scheme = plan.options.scheme
        self._choices = options
        self._dtype = dtype
        self._windows = windows
        self._embedded: EmbeddedWindows | None = None
        self._job: LayerJob | None = None

    @torch.inference_mode()
    def quantize(self, unit: Unit, tick: Tick) -> dict[str, Quantized]:
        """The planned matrices of ``unit``; the states advance behind a layer."""
        run = _UnitRun(self, unit, tick)
        if unit.layer is not None:
            run.layer(self.states(), self._prefix(unit.layer), self._kind(unit.layer))
        elif unit.name == "head":
            run.head(self.states())
        elif unit.name == "mtp":
            run.mtp(self.states())
        return run.results

    @torch.inference_mode()
    def replay(self, unit: Unit, read: ReadPacked) -> None:
        """Take the states through a layer that is written already."""
        if unit.layer is None:
            return
        quantized = {one.name for one in unit.tensors if one.quantized}

        def get(name: str) -> torch.Tensor:
            if name in quantized:
                return self.dequantized(read(name))
            return self.converted(name, self._source.read(name))

        def original(name: str) -> torch.Tensor:
            return self.converted(name, self._source.read(name))

        prefix, kind = self._prefix(unit.layer), self._kind(unit.layer)
        ideal = build_layer(original, prefix, kind) if self.compensate else None
        self.states().advance(build_layer(get, prefix, kind), ideal)

    def dequantized(self, packed: Packed) -> torch.Tensor:
        """The matrix that a stored form stands for, to compute with."""
        on_device = {
            tail: tensor if tail == "weight_shape" else tensor.to(self.device)
            for tail, tensor in packed.items()
        }
        return unpack(on_device, self._scheme).dequantize(self._dtype)

    def converted(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A 16-bit tensor to compute with."""
        result: torch.Tensor = converted(name, tensor, self._dtype, self.device)
        return result

    def fit(self, name: str, blocks: Iterator[torch.Tensor], moment: Hessian) -> Quantized:
        """One matrix by GPTQ."""
        return fit_matrix(blocks, moment, self._scheme, self._choices, self.device)

    @property
    def compensate(self) -> bool:
        """Whether a 16-bit run goes beside the quantized one."""
        return self._choices.compensate

    @property
    def weigh_head(self) -> bool:
        """Whether the head's calibration rows are weighted."""
        return self._choices.weigh_head

    @property
    def source(self) -> Source:
        """The checkpoint."""
        return self._source

    @property
    def embedded(self) -> EmbeddedWindows:
        """The embedding rows of the calibration ids, read when they are first needed."""
        if self._embedded is None:
            name = self._source.stored.prefix + names.EMBEDDING
            self._embedded = EmbeddedWindows(self._source, name, self._windows.ids)
        return self._embedded

    def states(self) -> LayerJob:
        """The hidden states of all windows, embedded when they are first needed."""
        if self._job is None:
            states = self.embedded.states(self._dtype)
            ideal = states.clone() if self.compensate else None
            self._job = LayerJob(self._source.config, states, self.device, ideal)
        return self._job

    def _prefix(self, index: int) -> str:
        return f"{self._source.stored.prefix}layers.{index}."

    def _kind(self, index: int) -> LayerType:
        return self._source.config.layer_types[index]


class _UnitRun:
    """One unit being quantized."""

    def __init__(self, method: GptqMethod, unit: Unit, tick: Tick) -> None:
        self.results: dict[str, Quantized] = {}
        self._method = method
        self._config = method.source.config
        self._unit = unit
        self._tick = tick
        self._planned = {one.name: one for one in unit.tensors if one.quantized}
        self._host: dict[str, torch.Tensor] = {}

    def layer(self, job: LayerJob, prefix: str, kind: LayerType) -> None:
        """A decoder layer, which the states go through."""
        self._fit_layer(job, build_layer(self._get, prefix, kind), prefix, kind)

    def head(self, job: LayerJob) -> None:
        """The output head, on the final norm of the states.

        A small change e of one position's logits changes the KL of its distribution p by half of
        ``e (diag(p) - p p^T) e``, which is large where p is spread: rows are weighted by the trace
        of that matrix, ``1 - sum p^2``.
        """
        if names.HEAD not in self._planned:
            return
        norm = self._get(self._method.source.stored.prefix + names.FINAL_NORM)
        best = job if job.ideal is None else job.ideal
        doubt = self._doubt(best, norm) if self._method.weigh_head else None
        moment = Hessian(self._config.hidden_size, self._method.device, drift=job.ideal is not None)
        for index in range(len(job.states)):
            x = self._normed(job, norm, index, doubt)
            ideal = None if job.ideal is None else self._normed(job.ideal, norm, index, doubt)
            moment.add(x, ideal)
        self._fit(names.HEAD, moment)

    def _normed(
        self, job: LayerJob, norm: torch.Tensor, index: int, doubt: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What the head is multiplied with [T, D], times the root of each row's weight."""
        x = rms_norm(job.states[index].to(norm.device), norm, self._config.rms_norm_eps)
        return x if doubt is None else x.float() * doubt[index].sqrt().unsqueeze(1)

    def _doubt(self, job: LayerJob, norm: torch.Tensor) -> torch.Tensor:
        """``1 - sum p^2`` for the 16-bit head's p at every position, float32 [n, T].

        The head comes in blocks of rows, each of which meets all windows; a position keeps the
        logarithms of ``sum e^z`` and ``sum e^2z`` over the blocks so far.
        """
        once = torch.full(job.states.shape[:2], float("-inf"), device=norm.device)
        twice = once.clone()
        for block in self._method.source.rows(names.HEAD, block_rows(self._config.hidden_size)):
            matrix = self._method.converted(names.HEAD, block)
            for index in range(len(job.states)):
                z = linear(self._normed(job, norm, index), matrix).float()
                once[index] = torch.logaddexp(once[index], z.logsumexp(-1))
                twice[index] = torch.logaddexp(twice[index], (2 * z).logsumexp(-1))
        return (1 - (twice - 2 * once).exp()).clamp_(min=LEAST_DOUBT)

    def mtp(self, job: LayerJob) -> None:
        """The MTP head: its projection, then its layer on what the quantized one gives."""
        if not self._planned:
            return
        norm = self._get(self._method.source.stored.prefix + names.FINAL_NORM)
        mtp = build_mtp(self._get)
        original = mtp
        if MTP_MATRIX in self._planned:
            moment = Hessian(mtp.fc.shape[1], self._method.device, drift=job.ideal is not None)
            for index in range(len(job.states)):
                ideal = None
                if job.ideal is not None:
                    ideal = self._mtp_input(job.ideal, mtp, norm, index)
                moment.add(self._mtp_input(job, mtp, norm, index), ideal)
            mtp = dataclasses.replace(mtp, fc=self._fit(MTP_MATRIX, moment))
        states = self._mtp_states(job, mtp, norm)
        beside = None if job.ideal is None else self._mtp_states(job.ideal, original, norm)
        inner = LayerJob(self._config, states, self._method.device, beside)
        self._fit_layer(inner, mtp.layers[0], MTP_LAYER_PREFIX, "full_attention")

    def _mtp_states(self, job: LayerJob, mtp: MtpWeights, norm: torch.Tensor) -> torch.Tensor:
        """What the head's layer starts from, [n, T-1, D].

        In place: nothing behind the MTP head reads the body's states.
        """
        for index in range(len(job.states)):
            x = linear(self._mtp_input(job, mtp, norm, index), mtp.fc)
            job.states[index, :-1] = x
        return job.states[:, :-1]

    def _mtp_input(
        self, job: LayerJob, mtp: MtpWeights, norm: torch.Tensor, index: int
    ) -> torch.Tensor:
        """What ``fc`` is multiplied with: position p has the hidden at p and the id at p+1."""
        x = job.states[index].to(self._method.device)
        hidden = rms_norm(x, norm, self._config.rms_norm_eps)[:-1]
        rows = self._method.embedded.rows(index)[1:].to(hidden)
        # The rows are in order, so that row p is its own id.
        ids = torch.arange(len(rows), device=rows.device)
        model = ModelWeights(embed_tokens=rows, layers=(), norm=norm, lm_head=rows, mtp=mtp)
        kv = KvCache.empty(self._config, len(rows), rows.dtype, rows.device)
        run = partial(mtp_forward, ids, hidden, model, mtp, self._config, kv, 0)
        return input_of(mtp.fc, run)

    def _fit_layer(self, job: LayerJob, layer: LayerWeights, prefix: str, kind: LayerType) -> None:
        tails = {
            field: prefix + tail
            for field, tail in field_tails(kind).items()
            if prefix + tail in self._planned
        }
        job.quantize(layer, tails, lambda field, moment: self._fit(tails[field], moment))

    def _fit(self, name: str, moment: Hessian) -> torch.Tensor:
        planned = self._planned[name]
        self._tick(0, f"{self._unit.name}: {planned.module.rpartition('.')[2]}")
        rows = block_rows(planned.stored.shape[1])
        held = self._host.pop(name, None)
        blocks = self._method.source.rows(name, rows) if held is None else _row_blocks(held, rows)
        result = self._method.fit(name, blocks, moment)
        self.results[name] = result
        self._tick(planned.stored.num_bytes, self._unit.name)
        # The head's own product is needed by nothing here.
        return torch.empty(0) if name == names.HEAD else self._method.dequantized(result.packed)

    def _get(self, name: str) -> torch.Tensor:
        tensor = self._method.source.read(name)
        if name in self._planned:
            self._host[name] = tensor  # GPTQ starts from the stored values, whatever the dtype
        return self._method.converted(name, tensor)


def _row_blocks(matrix: torch.Tensor, rows: int) -> Iterator[torch.Tensor]:
    for start in range(0, matrix.shape[0], rows):
        yield matrix[start : start + rows]
