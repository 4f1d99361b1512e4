"""A layer of fake tensors for the argument tests of the weight stream: no memory behind them."""

from typing import Any

from bytebound_kernels import (
    GdnPending,
    GdnRows,
    GdnState,
    GdnWeights,
    PackedW4,
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamOp,
    StreamProduct,
    StreamProgram,
    StreamReplay,
    gdn_updates_width,
    w4_packed_bytes,
    weight_stream,
)

D, H, HV, F, P = 256, 1, 2, 384, 5
C, VALUES = (2 * H + HV) * 128, HV * 128
W = gdn_updates_width(H, HV)
HALF, FULL, INT = "torch.float16", "torch.float32", "torch.int32"
WORKSPACE_BYTES = 4096

# name: shape, dtype; each in memory of its own, but for the parts of projected and gates.
TENSORS: dict[str, tuple[tuple[int, ...], str]] = {
    "x": ((8, D), FULL),
    "norm_1": ((D,), FULL),
    "projected": ((8, C + VALUES), HALF),
    "gates_weight": ((2 * HV, D), HALF),
    "gates": ((8, 2 * HV), HALF),
    "conv": ((C, 4), HALF),
    "a_log": ((HV,), FULL),
    "dt_bias": ((HV,), FULL),
    "norm": ((128,), FULL),
    "conv_window": ((C, 3), HALF),
    "recurrent": ((HV, 128, 128), FULL),
    "pending_qkv": ((P, C), HALF),
    "pending_updates": ((P, W), FULL),
    "num_accepted": ((1,), INT),
    "mixed": ((8, VALUES), HALF),
    "updates": ((8, W), FULL),
    "middle": ((8, D), FULL),
    "norm_2": ((D,), FULL),
    "inner": ((8, F), HALF),
    "behind": ((8, D), FULL),
    "hidden": ((8, D), HALF),
    "in_proj": ((w4_packed_bytes(C + VALUES, D),), "torch.uint8"),
    "out_proj": ((w4_packed_bytes(D, VALUES),), "torch.uint8"),
    "gate_up": ((w4_packed_bytes(F, D, interleaved=True),), "torch.uint8"),
    "down": ((w4_packed_bytes(D, F),), "torch.uint8"),
}
POINTERS = {name: i << 24 for i, name in enumerate(TENSORS, start=1)}
# Parts of what another op writes: of which tensor, first column, columns.
PARTS = {
    "qkv": ("projected", 0, C),
    "z": ("projected", C, VALUES),
    "a": ("gates", 0, HV),
    "b": ("gates", HV, HV),
}


def tensors_of(fake: Any, **changes: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, dict[str, Any]] = {
        name: {"shape": shape, "dtype": dtype, "pointer": POINTERS[name]}
        for name, (shape, dtype) in TENSORS.items()
    }
    for name, (whole, column, width) in PARTS.items():
        fields[name] = {
            "shape": (8, width),
            "strides": (TENSORS[whole][0][1], 1),
            "pointer": POINTERS[whole] + 2 * column,
        }
    return {name: fake(**{**field, **changes.get(name, {})}) for name, field in fields.items()}


def layer(fake: Any, **changes: dict[str, Any]) -> list[StreamOp]:
    """One Gated DeltaNet layer and its MLP; a change is a dict of fields of that tensor."""
    t = tensors_of(fake, **changes)
    delta = StreamGatedDelta(
        GdnRows(t["qkv"], t["a"], t["b"]),
        t["z"],
        GdnWeights(t["conv"], t["a_log"], t["dt_bias"], t["norm"]),
        GdnState(t["conv_window"], t["recurrent"]),
        GdnPending(t["pending_qkv"], t["pending_updates"]),
        t["num_accepted"],
        t["mixed"],
        t["updates"],
        1e-5,
    )
    return [
        StreamReplay(delta),
        StreamNorm(t["x"], t["norm_1"], t["hidden"], 0.5),
        StreamProduct(PackedW4(t["in_proj"], C + VALUES, D), t["projected"]),
        StreamGates(t["gates_weight"], t["gates"]),
        delta,
        StreamProduct(PackedW4(t["out_proj"], D, VALUES), t["middle"], t["mixed"], t["x"]),
        StreamNorm(t["middle"], t["norm_2"]),
        StreamProduct(PackedW4(t["gate_up"], F, D, interleaved=True), t["inner"], scale=0.25),
        StreamProduct(PackedW4(t["down"], D, F), t["behind"], t["inner"], t["middle"], 4.0),
    ]


def workspace_of(fake: Any, **changes: Any) -> Any:
    fields = {"shape": (WORKSPACE_BYTES,), "dtype": "torch.uint8", "pointer": 1 << 34, **changes}
    return fake(**fields)


def program_of(fake: Any, ops: Any) -> StreamProgram:
    ops = tuple(ops)
    table = fake((512 * max(len(ops), 1),), dtype="torch.uint8", pointer=1 << 40)
    return StreamProgram(ops, table=table, stream=5)


def call(fake: Any, ops: Any, **keywords: Any) -> None:
    program = ops if isinstance(ops, StreamProgram) else program_of(fake, ops)
    weight_stream(program, **{"rows": 3, "workspace": workspace_of(fake), **keywords})


def changed(ops: list[StreamOp], index: int, **fields: Any) -> list[StreamOp]:
    return [*ops[:index], ops[index]._replace(**fields), *ops[index + 1 :]]
