"""The reference is PyTorch's own embedding wherever the id is inside the table."""

import pytest
from bytebound_kernels.ops.embedding_gather import embedding_gather_reference

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_matches_torch_and_shows_a_wrong_id(dtype: str) -> None:
    table = torch.randn(10, 6, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    ids = torch.tensor([9, 0, -1, 10, 3], dtype=torch.int32)
    result = embedding_gather_reference(ids, table)
    assert result.dtype == table.dtype
    inside = torch.tensor([0, 1, 4])
    assert torch.equal(result[inside], torch.nn.functional.embedding(ids[inside], table))
    assert result[[2, 3]].isnan().all()
    wide = embedding_gather_reference(ids, table, dtype=torch.float32)
    assert torch.equal(wide[inside], result[inside].float())
