"""How matrices lie in a CPU's memory: the values and shapes stay, the order of storage changes.

A decode pass multiplies a dozen rows by each matrix. Where the outputs of a matrix lie next to each
other (and not its inputs, as in a checkpoint) that product takes less time.
"""

from bytebound.weights import ModelWeights, iter_tensors

_GATHERED = ("embed_tokens", "conv1d")  # read by row or element, never multiplied


def store_output_major(weights: ModelWeights) -> None:
    """Store every multiplied matrix [N, K] column by column, in place and one at a time."""
    tied = weights.lm_head is weights.embed_tokens
    for path, tensor in iter_tensors(weights):
        if tensor.dim() != 2 or path.endswith(_GATHERED) or (tied and path == "lm_head"):
            continue
        tensor.data = tensor.t().contiguous().t()
