"""The output head of a draft vocabulary: some rows of the model's own head, as a matrix of itself.

A head in 4 bits stays so, code for code: its rows are taken from the folder, since a packed matrix
does not give rows back.
"""

import torch

from bytebound import tensor_names as names
from bytebound.checkpoint import StoredModel
from bytebound.cuda.assembly import PackableMatrix, pack, packable, zero_words
from bytebound.cuda.matrices import DenseMatrix, Matrix, PackedMatrix
from bytebound.packing import unpack
from bytebound.quantized import read_matrix


def stored_draft_head(stored: StoredModel, head: Matrix, ids: torch.Tensor) -> Matrix:
    """Rows ``ids`` int32 [N] of ``head`` [vocab, D], as [N, D] on its device.

    Raises:
        CheckpointError: the stored head cannot be read.
    """
    if isinstance(head, DenseMatrix):
        return DenseMatrix(head.weight[ids.long().to(head.weight.device)].contiguous())
    if not isinstance(head, PackedMatrix):
        raise TypeError(f"an output head is no {type(head).__name__}")
    # In host memory, so that the card never holds the whole head a second time.
    whole = packable(read_matrix(stored.packed[names.HEAD]))
    if whole is None:
        raise TypeError("the output head is packed here and not in the folder")
    return pack([_on_device(rows_of(whole, ids), head.weight.data.device)], gated=False)


def rows_of(matrix: PackableMatrix, ids: torch.Tensor) -> PackableMatrix:
    """The same matrix with the rows ``ids`` alone."""
    chosen = ids.long()
    zero_point = None
    if matrix.zero_point is not None:
        rows = matrix.words.shape[0]
        zero_point = zero_words(unpack(matrix.zero_point.T.contiguous(), rows).T[chosen])
    return PackableMatrix(
        matrix.words[chosen].contiguous(), matrix.scale[chosen].contiguous(), zero_point
    )


def _on_device(matrix: PackableMatrix, device: torch.device) -> PackableMatrix:
    zero_point = None if matrix.zero_point is None else matrix.zero_point.to(device)
    return PackableMatrix(matrix.words.to(device), matrix.scale.to(device), zero_point)
