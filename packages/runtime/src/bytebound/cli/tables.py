"""The tables of ``bytebound info``: its report laid out for reading. Computes nothing."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bytebound.cli.errors import one_line
from bytebound.cli.output import emit

if TYPE_CHECKING:
    from bytebound.memory import MemoryPlan

PIPE_WIDTH = 110  # columns where there is no terminal to ask

# Letter, what it counts, field: the alphabet of the code and the papers.
_DIMENSIONS = (
    ("L", "layers", "num_hidden_layers"),
    ("D", "hidden width", "hidden_size"),
    ("F", "MLP width", "intermediate_size"),
    ("NH", "query heads", "num_attention_heads"),
    ("NKV", "key-value heads", "num_key_value_heads"),
    ("DH", "head width", "head_dim"),
    ("H", "Gated DeltaNet key heads", "linear_num_key_heads"),
    ("HV", "Gated DeltaNet value heads", "linear_num_value_heads"),
    ("K", "key width", "linear_key_head_dim"),
    ("V", "value width", "linear_value_head_dim"),
    ("C", "conv channels", "conv_channels"),
    ("", "conv kernel", "linear_conv_kernel_dim"),
    ("", "vocabulary", "vocab_size"),
    ("", "longest context", "max_position_embeddings"),
)
_BUDGET_ROWS = {
    "decoder": "decoder matrices",
    "head": "output head",
    "state": "recurrent state, read and written",
    "kv": "keys and values",
    "conv_window": "conv windows, read and written",
    "small": "norms, embedding row, ...",
    "total": "total",
}
_PLAN_ROWS = {
    "weights": "weights and head",
    "embedding": "embedding",
    "mtp_weights": "MTP head",
    "kv": "keys and values",
    "mtp_kv": "keys and values of MTP",
    "gdn_state": "recurrent state",
    "conv_windows": "conv windows",
    "verify_rows": "rows under verification",
    "scratch": "scratch",
    "draft_head": "head of the draft vocabulary",
    "stream": "weight stream",
    "snapshots": "kept states",
    "loading": "more while loading",
    "graphs": "recorded passes",
    "cuda_context": "CUDA itself",
    "total": "total",
}


def show(report: dict[str, Any]) -> None:
    """Write the whole report to stdout."""
    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False
    )

    def line(label: str, text: str) -> None:
        # One logical line each, however long a path is.
        console.print(Text.assemble((f"{label:<14}", "bold"), one_line(text)), soft_wrap=True)

    with console.capture() as captured:
        for label, text in _lines(report):
            line(label, text)
        console.print()
        console.print(_config_table(report["config"]))
        console.print(_budget_table(report["bytes_per_token"], report["card"]))
        console.print(_plan_table(report["memory_plan"]))
        for label, text in _fitting(report["memory_plan"]["cuda"]):
            line(label, text)
        line("CUDA", report["card"]["cuda"])
        if report["card"]["read_gb_s"] is None:
            line(
                "limit",
                "no GPU to measure; --read-gb-s computes the limit of a card that reads so fast",
            )
    emit(captured.get())


def size(count: float) -> str:
    """Bytes in the unit that leaves few digits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3f} {unit}"
    return f"{count:.0f} B"


def plan_line(plan: "MemoryPlan") -> str:
    """What an engine holds at most, the largest part first."""
    parts = sorted(plan.rows(), key=lambda row: -row[1])
    listed = ", ".join(f"{_PLAN_ROWS[name]} {size(count)}" for name, count in parts if count)
    return f"{plan.max_len:,} positions take {size(plan.total)} at most: {listed}"


def _lines(report: dict[str, Any]) -> Iterable[tuple[str, str]]:
    config, weights, text = report["config"], report["weights"], report["text"]
    yield "model", report["model"]
    if weights["random"]:
        yield "weights", "random, made in 4 bits on the GPU: for speed, what they generate is noise"
    else:
        yield "folder", report["folder"]
        yield from _weight_lines(weights)
    yield "backend", _backend(report["backend"], random=weights["random"])
    yield "engine", _engine(report["engine"])
    yield "MTP head", _yes(weights["mtp"])
    yield "tokenizer", _yes(text["tokenizer"])
    yield "chat template", _yes(text["chat_template"])
    yield "sampling", _sampling(config["generation"])
    yield "end tokens", ", ".join(map(str, config["eos_token_ids"])) or "none in the config"


def _fitting(plan: dict[str, Any] | None) -> Iterable[tuple[str, str]]:
    if plan is None or plan["available"] is None:
        return
    available, longest = size(plan["available"]), plan["largest_max_len"]
    yield "context", f"cuda: up to {longest:,} positions fit into {available}"


def _weight_lines(weights: dict[str, Any]) -> Iterable[tuple[str, str]]:
    if not weights["present"]:
        yield "weights", "no safetensors in the folder; everything below is from the config alone"
    elif weights["problem"] is not None:
        yield "weights", f"cannot be loaded: {weights['problem']}"
    else:
        yield (
            "weights",
            f"{weights['tensors']} tensors, {weights['parameters'] / 1e6:,.1f} M parameters, "
            f"{size(weights['bytes'])} as {', '.join(weights['dtypes'])} "
            f"in {len(weights['files'])} file{'s' if len(weights['files']) > 1 else ''}",
        )
        if weights["packed"]:
            yield "4-bit", _packed(weights)
        if weights["skipped_vision_tensors"]:
            yield (
                "vision",
                f"{weights['skipped_vision_tensors']} tensors, "
                f"{size(weights['skipped_vision_bytes'])}: not loaded, text only",
            )


def _backend(backend: dict[str, Any], *, random: bool) -> str:
    name, reason = backend["name"], backend["why_not_cuda"]
    if reason is None:
        return str(name)
    return f"{'none' if random else name}, not cuda: {reason}"


def _engine(engine: dict[str, Any]) -> str:
    name, reason = engine["name"], engine["why_not_stream"]
    if name is None:
        return f"neither graph nor stream: {reason}"
    return (
        f"{name}, not graph: it was asked for"
        if reason is None
        else f"{name}, not stream: {reason}"
    )


def _sampling(generation: dict[str, Any]) -> str:
    """What the generation config asks for; without it, or with do_sample false, greedy."""
    given = {name: value for name, value in generation.items() if value is not None}
    if given.pop("do_sample", None) is False:
        given = {name: given[name] for name in given if name == "repetition_penalty"}
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "greedy"


def _packed(weights: dict[str, Any]) -> str:
    packed = weights["packed"]
    there = ("head", "mtp") if weights["mtp"] else ("head",)
    kept = [name for name in there if not packed[name]]
    return (
        f"{packed['matrices']} matrices as {', '.join(packed['layouts'])}, "
        f"{'symmetric' if packed['symmetric'] else 'asymmetric'}, "
        f"groups of {', '.join(map(str, packed['group_sizes']))}: "
        f"{packed['bits_per_weight']:.4g} bits a weight, {weights['bits_per_weight']:.4g} over all"
        f"{'; not packed: ' + ', '.join(kept) if kept else ''}. "
        "The reference engine unpacks them when it loads"
    )


def _yes(there: bool) -> str:
    return "yes" if there else "no"


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _config_table(config: dict[str, Any]) -> Table:
    table = Table(title="Config", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("", style="bold")
    table.add_column("dimension")
    table.add_column("value", justify="right")
    table.add_column("")
    remarks = {
        "num_hidden_layers": f"{config['num_linear_layers']} Gated DeltaNet, "
        f"{config['num_attention_layers']} attention",
        "head_dim": f"{config['rotary_dim']} rotary",
        "vocab_size": "head tied to the embedding" if config["tie_word_embeddings"] else "own head",
    }
    for letter, what, field in _DIMENSIONS:
        table.add_row(letter, what, f"{config[field]:,}", remarks.get(field, ""))
    return table


def _budget_table(budget: dict[str, Any], card: dict[str, Any]) -> Table:
    at_bits = budget["at_bits"]
    title = f"Bytes per token at {budget['context']:,} cached positions"
    table = _table(title, ["", *(f"{bits} bit" for bits in at_bits)])
    for row, label in _BUDGET_ROWS.items():
        table.add_row(
            label,
            *(size(one[row]) for one in at_bits.values()),
            style="bold" if row == "total" else "",
        )
    if card["read_gb_s"] is not None:
        limits = card["limit_tokens_per_s"].values()
        table.add_row(
            f"limit at {card['read_gb_s']:,.0f} GB/s, {card['read_gb_s_source']}",
            *(f"{limit:,.1f} tokens/s" for limit in limits),
            style="bold",
        )
    return table


def _plan_table(plan: dict[str, Any]) -> Table:
    reference, cuda = plan["reference"], plan["cuda"]
    columns = {f"reference, {reference['dtype']}": reference}
    if cuda is not None:
        columns[f"cuda, {cuda['kv_dtype']} KV"] = cuda
    columns |= {f"kernels, {bits} bit": one for bits, one in plan["at_bits"].items()}
    noise = ", random weights" if cuda is not None and cuda["random_weights"] else ""
    table = _table(f"Memory plan for {plan['max_len']:,} positions{noise}", ["", *columns])
    for row, label in _PLAN_ROWS.items():
        if any(one[row] for one in columns.values()):
            table.add_row(
                label,
                *(size(one[row]) for one in columns.values()),
                style="bold" if row == "total" else "",
            )
    return table
