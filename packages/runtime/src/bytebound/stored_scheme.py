"""How the packed matrices of a folder are to be understood: layout, group size, symmetry.

WHICH matrices are packed is decided by what the files hold, never here (E16, E28). The records come
from ``scheme_readers.py``, which reads them from the config.
"""

import re
from dataclasses import dataclass
from typing import Literal

from bytebound.config_fields import CONFIG_FILE
from bytebound.errors import CheckpointError

Layout = Literal["pack-quantized", "gptq", "gptq_v2", "awq"]

FORMAT_VERSION = 1  # the highest version of our own metadata that this package understands


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """How the matrices that ``targets`` name are stored."""

    targets: tuple[str, ...]  # module names, "re:" patterns or class names; empty: all
    group_size: int | None  # columns that share a scale; None: the whole row
    symmetric: bool
    reordered: bool = False  # columns may belong to groups in another order than their own


@dataclass(frozen=True, slots=True)
class StoredScheme:
    """The whole ``quantization_config`` of a folder."""

    layout: Layout
    groups: tuple[StoredGroup, ...]
    ignore: tuple[str, ...] = ()  # module names, "re:" patterns or class names
    format_version: int | None = None  # None: not written by bytebound-quant

    def ignores(self, module: str) -> bool:
        """Whether the config says that this module is not quantized."""
        return any(_match(one, module) for one in self.ignore)

    def group_of(self, module: str) -> StoredGroup:
        """How this module is stored, if it is packed.

        A name wins over a pattern and a pattern over a class. With a single group its targets do
        not matter: tools spell fused and split modules differently, and the file has decided.
        """
        if len(self.groups) == 1:
            return self.groups[0]
        for kind in (_is_name, _is_pattern, _is_class):
            for group in self.groups:
                if any(kind(one) and _match(one, module) for one in group.targets):
                    return group
        raise CheckpointError(
            f"{CONFIG_FILE}: {module} is stored packed, yet no target of config_groups names it; "
            "which group size it has is not said"
        )


def _is_pattern(target: str) -> bool:
    return target.startswith("re:")


def _is_class(target: str) -> bool:
    return target in ("Linear", "Embedding")


def _is_name(target: str) -> bool:
    return not _is_pattern(target) and not _is_class(target)


def _match(target: str, module: str) -> bool:
    if _is_pattern(target):
        return re.match(target.removeprefix("re:"), module) is not None
    if _is_class(target):
        return (target == "Embedding") == module.endswith("embed_tokens")
    return target == module
