"""The compiled module that is installed: GPU code, libraries, symbols."""

from pathlib import Path

import bytebound_kernels
import check_fatbin
from bytebound_kernels import _native


def module() -> check_fatbin.Module:
    file = Path(_native.__file__)
    return check_fatbin.Module(file.name, file.read_bytes())


def test_holds_the_gpu_code_that_it_claims() -> None:
    assert list(check_fatbin.check_archs(module(), set(bytebound_kernels.compiled_archs))) == []
    assert bool(module().fatbins()) is bytebound_kernels.built_with_cuda


def test_needs_only_libraries_that_every_system_has() -> None:
    assert list(check_fatbin.check_libraries(module())) == []


def test_keeps_its_cuda_runtime_to_itself() -> None:
    assert list(check_fatbin.check_symbols(module())) == []
    assert "PyInit__native" in module().exported_symbols()
