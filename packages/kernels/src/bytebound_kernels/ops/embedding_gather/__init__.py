"""Rows of an embedding table by id."""

from bytebound_kernels.ops.embedding_gather.op import embedding_gather
from bytebound_kernels.ops.embedding_gather.reference import embedding_gather_reference

__all__ = ["embedding_gather", "embedding_gather_reference"]
