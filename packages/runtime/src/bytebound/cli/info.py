"""``bytebound info``: what a model is, what a token of it costs and what it will hold.

All numbers come from ``config.json`` and the headers of the safetensors files; no weight is read. A
folder with a config and no weights at all is enough for the arithmetic. Weights that do not fit
their config are reported, and the exit code is then 1.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytebound.cli import options as opt
from bytebound.cli.errors import FAILED, OK, UsageError, complain
from bytebound.errors import CheckpointError

if TYPE_CHECKING:
    from bytebound.checkpoint import StoredModel
    from bytebound.config import ModelConfig
    from bytebound.cuda.memory import CudaMemory

DEFAULT_BITS = [16.0, 4.125]
MAX_BITS = 64.0

Report = dict[str, Any]


def info(
    model: opt.Model,
    bits: Annotated[
        list[float] | None,
        typer.Option(
            metavar="B",
            help="Bits per weight to compute with; may be repeated. Default: 16, and 4.125 or "
            "what the folder's packed matrices take.",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Cached positions that a token reads. Default: 1024, or the model's limit.",
        ),
    ] = None,
    read_gb_s: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Read bandwidth of a card, for its limit in tokens/s. Default: measured here, "
            "where there is a GPU.",
        ),
    ] = None,
    max_len: opt.MaxLen = None,
    backend: opt.Backend = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    kv_dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|bfloat16|fp8",
            help="What the CUDA backend keeps keys and values in. auto: fp8 beyond 65,536 "
            "positions.",
        ),
    ] = "auto",
    engine: opt.EngineName = "graph",
    vram_limit: opt.VramLimit = None,
    json_: opt.Json = False,
) -> int:
    """Show a model's config, bytes per token, memory plan and this card's limit.

    Reads the config and the headers of the weight files, never a weight.
    Exit code 1: the weights are there and do not fit the config.
    """
    widths = list(dict.fromkeys(bits or DEFAULT_BITS))
    for width in widths:
        if not 0 < width <= MAX_BITS:
            raise UsageError(f"--bits {width:g}: expected a number above 0, at most {MAX_BITS:g}")
    if read_gb_s is not None and not 0 < read_gb_s < float("inf"):
        raise UsageError(f"--read-gb-s {read_gb_s:g}: expected a bandwidth above 0")

    from bytebound.cli import tables
    from bytebound.cli.output import emit_json
    from bytebound.cli.progress import Waiting
    from bytebound.loading import find_model
    from bytebound.vram import parse_size

    limit = None if vram_limit is None else parse_size("vram_limit", vram_limit)
    with Waiting("reading headers"):
        folder, config = find_model(model)
        report: Report = {
            "model": model,
            "folder": None if folder is None else str(folder),
            "config": config_record(config),
            "weights": weights_record(folder, config),
            "text": text_record(folder),
            "backend": backend_record(backend, config, device, dtype),
        }
        packed = report["weights"].get("packed")
        if packed and not bits:
            widths[-1] = round(packed["bits_per_weight"], 4)
        report["bytes_per_token"] = budgets(config, widths, _context(context, config))
        report["memory_plan"] = plans(
            config, report["weights"]["mtp"], widths, max_len=max_len, device=device, dtype=dtype
        )
        length = report["memory_plan"]["max_len"]
        memory = cuda_memory(folder, config, kv_dtype)
        report["engine"] = engine_record(engine, report["backend"]["name"], memory, dtype)
        report["memory_plan"]["cuda"] = cuda_plan(memory, report["engine"]["name"], length, limit)
        report["card"] = card_record(read_gb_s, report["bytes_per_token"])
    if json_:
        emit_json(report)
    else:
        tables.show(report)
    problem = report["weights"]["problem"]
    if problem is None:
        return OK
    complain(problem)
    return FAILED


def config_record(config: "ModelConfig") -> Report:
    """Every field of the config, and what follows from them."""
    from dataclasses import asdict

    return {
        **asdict(config),
        "conv_channels": config.conv_channels,
        "rotary_dim": config.rotary_dim,
        "num_linear_layers": config.num_linear_layers,
        "num_attention_layers": config.num_attention_layers,
    }


def weights_record(folder: Path | None, config: "ModelConfig") -> Report:
    """What the files hold by their headers, and what is wrong with them."""
    from bytebound.checkpoint import read_headers

    # Without weights the config's own word counts; the arithmetic needs no more.
    record: Report = {
        "present": folder is not None and any(folder.glob("*.safetensors*")),
        "random": folder is None,
        "problem": None,
        "mtp": bool(config.mtp_num_hidden_layers),
    }
    if folder is None or not record["present"]:
        return record
    try:
        stored = read_headers(folder, config)
    except CheckpointError as error:
        return {**record, "problem": str(error)}
    loaded, skipped = stored.tensors.values(), stored.skipped.values()
    return {
        **record,
        "mtp": stored.with_mtp,
        "files": [path.name for path in stored.files],
        "tensors": len(loaded),
        "parameters": stored.parameters,
        "bytes": stored.num_bytes,
        "bits_per_weight": stored.bits_per_weight,
        "packed": packed_record(stored),
        "dtypes": sorted({one.dtype for one in loaded}),
        "skipped_vision_tensors": len(skipped),
        "skipped_vision_bytes": sum(one.num_bytes for one in skipped),
    }


def packed_record(stored: "StoredModel") -> Report | None:
    """The matrices that are stored in 4 bits; None where all weights are plain."""
    if not stored.packed:
        return None
    schemes = {one.scheme for one in stored.packed.values()}
    return {
        "matrices": len(stored.packed),
        "layouts": sorted({one.layout for one in schemes}),
        "group_sizes": sorted({one.group_size for one in schemes}),
        "symmetric": all(one.symmetric for one in schemes),
        "bits_per_weight": stored.packed_bits_per_weight,
        "head": "lm_head.weight" in stored.packed,
        "mtp": any(name.startswith("mtp.") for name in stored.packed),
    }


def text_record(folder: Path | None) -> Report:
    """Which text files are there; whether they can be used is seen when the model is loaded."""
    import json

    if folder is None:
        return dict.fromkeys(("tokenizer", "chat_template", "generation_config"), False)

    def holds_template() -> bool:
        try:
            settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(settings, dict) and bool(settings.get("chat_template"))

    template = any(
        (folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")
    )
    return {
        "tokenizer": any(
            (folder / name).is_file()
            for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
        ),
        "chat_template": template or holds_template(),
        "generation_config": (folder / "generation_config.json").is_file(),
    }


def budgets(config: "ModelConfig", widths: list[float], context: int) -> Report:
    """The byte budget of one token at each width."""
    from bytebound.memory import byte_budget

    return {
        "context": context,
        "at_bits": {
            f"{width:g}": byte_budget(config, bits_per_weight=width, context=context).as_dict()
            for width in widths
        },
    }


def plans(
    config: "ModelConfig",
    with_mtp: bool,
    widths: list[float],
    *,
    max_len: int | None,
    device: str | None,
    dtype: str | None,
) -> Report:
    """What the reference backend holds here, and what a kernel backend holds at each width."""
    from bytebound.cli.opening import check_max_len
    from bytebound.loading import plan_memory
    from bytebound.memory import MemorySettings, memory_plan
    from bytebound.settings import DEFAULT_MAX_LEN, check_device, check_dtype

    check_max_len(max_len, config)
    length = min(DEFAULT_MAX_LEN, config.max_position_embeddings) if max_len is None else max_len
    kind = check_dtype(dtype, config, check_device(device))
    reference = plan_memory(config, length, kind, with_mtp=with_mtp)
    return {
        "max_len": length,
        "reference": {"dtype": str(kind).removeprefix("torch."), **reference.as_dict()},
        "at_bits": {
            f"{width:g}": memory_plan(
                config,
                max_len=length,
                settings=MemorySettings(bits_per_weight=width, mtp=with_mtp),
            ).as_dict()
            for width in widths
        },
    }


def backend_record(
    asked: str, config: "ModelConfig", device: str | None, dtype: str | None
) -> Report:
    """The backend that would run here, and why it is not the CUDA one."""
    from bytebound.backends import choose_backend
    from bytebound.settings import BACKENDS, check_choice

    check_choice("backend", asked, BACKENDS)
    chosen = choose_backend(asked, config, device, dtype)
    return {"name": chosen.name, "why_not_cuda": chosen.why_not_cuda}


def engine_record(
    asked: str, backend: str, memory: "CudaMemory | None", dtype: str | None
) -> Report:
    """How the CUDA backend would run a pass, and why not as a weight stream.

    Raises:
        InvalidSettingError: the weight stream was asked for and cannot run.
    """
    from bytebound.errors import InvalidSettingError
    from bytebound.settings import CUDA_DTYPES, ENGINES, check_choice

    check_choice("engine", asked, ENGINES)
    name: str | None = None
    problem: str | None
    if backend != "cuda":
        problem = f"the {backend} backend runs"
    elif memory is None:
        problem = "the weights cannot be loaded"
    else:
        import torch

        from bytebound.cuda.stream_limits import stream_problem

        name = "graph"
        problem = stream_problem(
            memory.config,
            memory.decoder_matrices(),
            CUDA_DTYPES.get(dtype or "", memory.dtype),
            torch.device("cuda", torch.cuda.current_device()),
        )
    if asked == "stream":
        if problem is not None:
            raise InvalidSettingError(f"engine='stream': {problem}; use engine='graph'")
        return {"name": "stream", "why_not_stream": None}
    return {"name": name, "why_not_stream": problem or "it was not asked for"}


def cuda_memory(folder: Path | None, config: "ModelConfig", kv_dtype: str) -> "CudaMemory | None":
    """The plans of the CUDA backend; None where it cannot run the model."""
    from bytebound.cuda.shapes import shape_problem
    from bytebound.settings import KV_DTYPES, check_choice

    check_choice("kv_dtype", kv_dtype, ("auto", *KV_DTYPES))
    if shape_problem(config) is not None:
        return None
    try:
        from bytebound.cuda.memory import plan_for
    except ImportError:
        return None
    try:
        return plan_for(folder, config, kv_dtype)
    except CheckpointError:  # reported as the problem of the weights
        return None


def cuda_plan(
    memory: "CudaMemory | None", engine: str | None, max_len: int, limit: int | None
) -> Report | None:
    """What the CUDA backend holds on this card, or on one like many; None where it cannot run.

    ``largest_max_len`` is the longest context that fits into ``available`` bytes: what is free
    here, at most ``limit``.
    """
    if memory is None:
        return None
    from dataclasses import replace

    from bytebound.cuda.memory import free_bytes

    memory = replace(memory, engine=engine or memory.engine)
    known = [size for size in (limit, free_bytes()) if size is not None]
    available = min(known, default=None)
    return {
        **memory.plan(max_len).as_dict(),
        "available": available,
        "largest_max_len": None if available is None else memory.largest_context(available),
    }


def card_record(read_gb_s: float | None, budget: Report) -> Report:
    """CUDA on this machine, and the limit of a card: the one described, else the one here."""
    from bytebound.bandwidth import read_bandwidth_gb_s

    try:
        from bytebound_kernels import cuda_status
    except ImportError as error:
        status = f"not usable: bytebound-kernels cannot be imported: {error}"
    else:
        status = cuda_status()
    source = "given"
    if read_gb_s is None:
        read_gb_s = read_bandwidth_gb_s()
        source = "none" if read_gb_s is None else "measured"
    limits = {
        bits: None if read_gb_s is None else read_gb_s * 1e9 / one["total"]
        for bits, one in budget["at_bits"].items()
    }
    return {
        "cuda": status,
        "read_gb_s": read_gb_s,
        "read_gb_s_source": source,
        "limit_tokens_per_s": limits,
    }


def _context(context: int | None, config: "ModelConfig") -> int:
    limit = config.max_position_embeddings
    if context is None:
        return min(1024, limit)
    if not 0 <= context <= limit:
        raise UsageError(f"--context {context}: expected 0 to {limit}, the model's limit")
    return context
