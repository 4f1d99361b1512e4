"""Turn a checkpoint of the Qwen3.5 family into a 4-bit one. Knows the on-disk format, no kernel."""

from bytebound_quant.errors import QuantError

__version__ = "0.1.0"

__all__ = ["QuantError", "__version__"]
