"""The part of sanitize.py for the passes over many tokens. Needs PyTorch and Triton.

The shapes are those of the GPU tests, so that what Triton compiled for them serves here too.
"""

import torch
from bytebound_kernels.prefill import attention_prefill, gdn_prefill

H, HV, K = 2, 6, 128
NH, NKV, DH = 6, 2, 256
DTYPE = torch.bfloat16


def filled(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return torch.full(shape, 0.5, device="cuda").to(dtype)


def run_gdn_prefill() -> int:
    """Less than a chunk, and chunks with a rest."""
    channels = (2 * H + HV) * K
    for tokens in (1, 130):
        gdn_prefill(
            filled(tokens, channels),
            filled(tokens, HV * K),
            filled(tokens, HV),
            filled(tokens, HV),
            filled(channels, 4),
            filled(HV, dtype=torch.float32),
            filled(HV, dtype=torch.float32),
            filled(K),
            filled(channels, 3, dtype=torch.float32),
            filled(HV, K, K, dtype=torch.float32),
        )
    return 2


def run_attention_prefill() -> int:
    """Both kinds of cache, just as long as needed.

    Not the way through PyTorch's attention: racecheck reports a hazard inside cuDNN's own kernel.
    """
    tokens = 70
    position = 61
    for cache in (DTYPE, torch.float8_e4m3fn):
        length = position + tokens
        scales = {}
        if cache == torch.float8_e4m3fn:
            scales = {
                name: filled(NKV, length, dtype=torch.float32) for name in ("k_scale", "v_scale")
            }
        attention_prefill(
            filled(tokens, NH * 2 * DH),
            filled(tokens, NKV * DH),
            filled(tokens, NKV * DH),
            filled(DH),
            filled(DH),
            filled(32, dtype=torch.float32),
            position,
            filled(NKV, length, DH, dtype=cache),
            filled(NKV, length, DH, dtype=cache),
            backend="triton",
            **scales,
        )
    return 2
