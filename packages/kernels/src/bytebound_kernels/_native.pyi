"""The compiled module: pointers and streams are integers, nothing is checked here."""

from typing import TypedDict

version: str
ABI_VERSION: int
built_with_cuda: bool
cuda_toolkit_version: str | None
compiled_archs: tuple[str, ...]
no_cuda_reason: str

class DeviceRecord(TypedDict):
    index: int
    name: str
    capability: tuple[int, int]
    num_sms: int
    l2_bytes: int
    memory_bytes: int

class ProbeRecord(TypedDict):
    error: str  # "ok" or the name of a cudaError_t
    error_text: str
    driver_version: int  # 13000 for CUDA 13.0; 0: no driver
    devices: list[DeviceRecord]

def probe() -> ProbeRecord: ...
def pointer_device(pointer: int) -> int: ...

# The functions below exist only where built_with_cuda is true.

def attention_decode(
    q_gate: int,
    k: int,
    v: int,
    q_norm: int,
    k_norm: int,
    inv_freq: int,
    position: int,
    k_cache: int,
    v_cache: int,
    k_scale: int,
    v_scale: int,
    workspace: int,
    out: int,
    *,
    rows: int,
    num_heads: int,
    num_kv_heads: int,
    max_positions: int,
    rotary_dim: int,
    q_gate_row_stride: int,
    k_row_stride: int,
    v_row_stride: int,
    out_row_stride: int,
    cache_head_stride: int,
    scale_head_stride: int,
    x_dtype: int,
    norm_dtype: int,
    cache_dtype: int,
    eps: float,
    scale: float,
    device: int,
    stream: int,
) -> None: ...
def attention_decode_workspace_bytes(rows: int, num_heads: int, max_positions: int) -> int: ...
def argmax_workspace_bytes(rows: int) -> int: ...
def argmax(
    logits: int,
    id_map: int,
    out: int,
    workspace: int,
    *,
    rows: int,
    n: int,
    row_stride: int,
    dtype: int,
    device: int,
    stream: int,
) -> None: ...
def dense_matvec(
    weight: int,
    up: int,
    x: int,
    out: int,
    residual: int,
    workspace: int,
    *,
    weight_row_stride: int,
    up_row_stride: int,
    x_row_stride: int,
    out_row_stride: int,
    residual_row_stride: int,
    rows: int,
    n: int,
    k: int,
    num_blocks: int,
    x_dtype: int,
    float_out: bool,
    epilogue: int,
    scale: float,
    device: int,
    stream: int,
) -> None: ...
def embedding_gather(
    ids: int,
    table: int,
    out: int,
    *,
    rows: int,
    n: int,
    d: int,
    table_row_stride: int,
    out_row_stride: int,
    table_dtype: int,
    out_dtype: int,
    device: int,
    stream: int,
) -> None: ...
def history_append(
    ids: int,
    num_ids: int,
    seen: int,
    counts: int,
    *,
    capacity: int,
    n: int,
    device: int,
    stream: int,
) -> None: ...
def logit_adjust(
    logits: int,
    out: int,
    settings: int,
    seen: int,
    counts: int,
    generated: int,
    drafts: int,
    bias_ids: int,
    bias_values: int,
    banned_ids: int,
    end_ids: int,
    *,
    rows: int,
    n: int,
    row_stride: int,
    out_row_stride: int,
    num_bias: int,
    num_banned: int,
    num_end: int,
    allow_minus_infinity: bool,
    device: int,
    stream: int,
) -> None: ...
def logprobs_workspace_bytes(rows: int, n: int, num_top: int) -> int: ...
def logprobs(
    logits: int,
    ids: int,
    out_values: int,
    out_ids: int,
    workspace: int,
    *,
    rows: int,
    n: int,
    row_stride: int,
    num_top: int,
    device: int,
    stream: int,
) -> None: ...
def sample_workspace_bytes(rows: int, n: int) -> int: ...
def sample(
    logits: int,
    settings: int,
    seed: int,
    position: int,
    out: int,
    weights: int,
    totals: int,
    workspace: int,
    *,
    rows: int,
    n: int,
    row_stride: int,
    position_offset: int,
    purpose: int,
    with_top_k: bool,
    with_top_p: bool,
    device: int,
    stream: int,
) -> None: ...
def speculative_sample_workspace_bytes(n: int) -> int: ...
def speculative_sample(
    weights: int,
    totals: int,
    drafts: int,
    draft_weights: int,
    draft_totals: int,
    seed: int,
    cycle: int,
    output: int,
    workspace: int,
    *,
    rows: int,
    n: int,
    capacity: int,
    device: int,
    stream: int,
) -> None: ...
def speculative_accept(
    ids: int,
    drafts: int,
    cycle: int,
    output: int,
    *,
    rows: int,
    capacity: int,
    device: int,
    stream: int,
) -> None: ...
def gdn_keep(
    projected: int,
    updates: int,
    pending_qkv: int,
    pending_updates: int,
    windows: int,
    num_accepted: int,
    *,
    projected_strides: tuple[int, int],
    updates_strides: tuple[int, int],
    pending_strides: tuple[int, int],
    pending_updates_strides: tuple[int, int],
    layers: int,
    channels: int,
    width: int,
    rows: int,
    device: int,
    stream: int,
) -> None: ...
def gdn_step(
    current: tuple[int, int, int],
    pending: tuple[int, ...],
    *,
    z: int,
    out: int,
    num_accepted: int,
    conv_weight: int,
    a_log: int,
    dt_bias: int,
    norm_weight: int,
    conv_window: int,
    state: int,
    rows: int,
    pending_rows: int,
    row_strides: tuple[int, int, int],
    z_row_stride: int,
    out_row_stride: int,
    h: int,
    hv: int,
    dtype: int,
    eps: float,
    commit: bool,
    state_settled: bool,
    device: int,
    stream: int,
) -> None: ...
def rms_norm(
    x: int,
    weight: int,
    out: int,
    *,
    rows: int,
    d: int,
    x_row_stride: int,
    out_row_stride: int,
    x_dtype: int,
    weight_dtype: int,
    out_dtype: int,
    eps: float,
    device: int,
    stream: int,
) -> None: ...
def rms_norm_project(
    x: int,
    weight: int,
    projection: int,
    out: int,
    projected: int,
    *,
    x_row_stride: int,
    projection_row_stride: int,
    out_row_stride: int,
    projected_row_stride: int,
    rows: int,
    n: int,
    d: int,
    dtype: int,
    eps: float,
    device: int,
    stream: int,
) -> None: ...
def read_bandwidth(memory: int, sink: int, *, num_bytes: int, device: int, stream: int) -> None: ...
def l2_persist_limits(device: int) -> tuple[int, int]: ...  # set-aside and window, in bytes
def l2_persist(  # returns the bytes that are set aside
    memory: int, *, num_bytes: int, hit_ratio: float, device: int, stream: int
) -> int: ...
def l2_persist_reset(stream: int) -> None: ...
def matvec_blocks(items: int, most_blocks: int) -> int: ...
def beside_blocks(n: int, num_blocks: int, most_blocks: int) -> int: ...
def matvec_workspace_bytes(num_blocks: int) -> int: ...
def w4_matmul_workspace_bytes(num_sms: int) -> int: ...
def w4_matmul(
    weight: int,
    x: int,
    out: int,
    residual: int,
    workspace: int,
    *,
    x_row_stride: int,
    out_row_stride: int,
    residual_row_stride: int,
    rows: int,
    n: int,
    k: int,
    num_sms: int,
    x_dtype: int,
    scale_dtype: int,
    asymmetric: bool,
    float_out: bool,
    epilogue: int,
    scale: float,
    device: int,
    stream: int,
) -> None: ...
def w4_matvec(
    weight: int,
    x: int,
    out: int,
    residual: int,
    workspace: int,
    *,
    x_row_stride: int,
    out_row_stride: int,
    residual_row_stride: int,
    rows: int,
    n: int,
    k: int,
    num_blocks: int,
    x_dtype: int,
    scale_dtype: int,
    asymmetric: bool,
    float_out: bool,
    epilogue: int,
    scale: float,
    beside_weight: int,  # 0: no product beside this one
    beside_out: int,
    beside_weight_row_stride: int,
    beside_out_row_stride: int,
    beside_n: int,
    beside_num_blocks: int,
    device: int,
    stream: int,
) -> None: ...
def w4_pack(
    packed: int,
    scale: int,
    zero_point: int,
    items: int,
    *,
    n: int,
    k: int,
    items_rows: int,
    first_row: int,
    part: int,
    device: int,
    stream: int,
) -> None: ...
def w4_unpack(
    weight: int,
    out: int,
    *,
    out_row_stride: int,
    n: int,
    k: int,
    out_dtype: int,
    scale_dtype: int,
    asymmetric: bool,
    interleaved: bool,
    device: int,
    stream: int,
) -> None: ...

STREAM_MAX_OPS: int

class StreamOp: ...

def stream_norm(
    *,
    x: int,
    weight: int,
    out: int,
    x_row_stride: int,
    out_row_stride: int,
    d: int,
    eps: float,
) -> StreamOp: ...
def stream_gates(
    *,
    weight: int,
    out: int,
    weight_row_stride: int,
    out_row_stride: int,
    n: int,
    d: int,
) -> StreamOp: ...
def stream_product(
    *,
    weight: int,
    x: int,
    out: int,
    residual: int,
    x_row_stride: int,
    out_row_stride: int,
    residual_row_stride: int,
    n: int,
    k: int,
    scale_dtype: int,
    asymmetric: bool,
    float_out: bool,
    epilogue: int,
    scale: float,
) -> StreamOp: ...
def stream_gated_delta(
    *,
    replay: bool,
    current: tuple[int, ...],
    pending: tuple[int, ...],
    z: int,
    out: int,
    updates: int,
    num_accepted: int,
    conv_weight: int,
    a_log: int,
    dt_bias: int,
    norm_weight: int,
    conv_window: int,
    state: int,
    pending_rows: int,
    row_strides: tuple[int, ...],
    z_row_stride: int,
    out_row_stride: int,
    updates_row_stride: int,
    h: int,
    hv: int,
    eps: float,
) -> StreamOp: ...
def weight_stream_workspace_bytes(num_sms: int) -> int: ...
def weight_stream_slots(rows: int, max_d: int, asymmetric: bool, device: int) -> int: ...
def weight_stream(
    ops: list[StreamOp],
    *,
    rows: int,
    workspace: int,
    clock: int,
    device: int,
    stream: int,
) -> None: ...
