"""The ``quantization_config`` of the output: compressed-tensors' block, and in it our own.

Other readers need the first part only; ``bytebound`` says how the folder was made and which tensors
stay 16 bit for what reason.
"""

from typing import Any

from bytebound_quant import __version__
from bytebound_quant.plan import Plan

FORMAT = "pack-quantized"
METADATA_VERSION = 1  # of the "bytebound" block


def quantization_config(plan: Plan, method: str) -> dict[str, Any]:
    """The block for a folder made by ``method``."""
    scheme = plan.options.scheme
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": scheme.bits,
                    "type": "int",
                    "symmetric": scheme.symmetric,
                    "strategy": "group",
                    "group_size": scheme.group_size,
                    "dynamic": False,
                },
                "input_activations": None,
                "output_activations": None,
            }
        },
        "ignore": plan.ignore(),
        "kv_cache_scheme": None,
        "bytebound": {
            "format_version": METADATA_VERSION,
            "method": method,
            "scheme": scheme.describe(),
            "exceptions": plan.exceptions(),
            "tool": f"bytebound-quant {__version__}",
        },
    }
