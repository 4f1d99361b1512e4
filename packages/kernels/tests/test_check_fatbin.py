"""The wheel checker, on bytes and reports made by hand."""

import struct
import zipfile
from pathlib import Path

import check_fatbin
import pytest

SPECIFIC, FAMILY = 1 << 20, 1 << 21


def fatbin(*entries: tuple[int, int, int]) -> bytes:
    """Build a container of (kind, architecture, flags); 2 is machine code, 1 is PTX."""
    body = b""
    for kind, arch, flags in entries:
        payload = b"\x55" * 24
        header = struct.pack(
            "<HHIQIIHHIIIQQQ", kind, 257, 64, 24, 24, 0, 1, 8, arch, 0, 0, flags, 0, 0
        )
        body += header.ljust(64, b"\0") + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body + b"\0" * 8


class FakeModule:
    def __init__(self, *containers: bytes, libraries: tuple[str, ...] = ()) -> None:
        self._data = b"".join(containers)
        self._libraries = libraries

    def fatbins(self) -> list[list[str]]:
        return list(check_fatbin._read_fatbins(self._data))

    def libraries(self) -> list[str]:
        return list(self._libraries)


def test_reads_kinds_and_suffixes() -> None:
    module = FakeModule(
        fatbin((2, 90, 0), (1, 120, 0)),
        fatbin((2, 90, SPECIFIC), (2, 100, FAMILY), (1, 120, FAMILY)),
    )
    assert module.fatbins() == [
        ["sm_90", "compute_120"],
        ["sm_90a", "sm_100f", "compute_120f"],
    ]


def test_reports_missing_and_unexpected_code() -> None:
    module = FakeModule(fatbin((2, 90, 0)), fatbin((2, 90, 0), (2, 120, 0)))
    (problem,) = check_fatbin.check_archs(module, {"sm_90", "sm_120"})
    assert problem == "GPU code: file 0 of 2 lacks sm_120"
    first, *_ = check_fatbin.check_archs(module, {"sm_80", "sm_90"})
    assert first == "GPU code: missing sm_80, unexpected sm_120"


def test_a_file_for_one_architecture_need_not_hold_the_others() -> None:
    module = FakeModule(fatbin((2, 90, 0), (2, 120, 0)), fatbin((2, 90, SPECIFIC)))
    assert list(check_fatbin.check_archs(module, {"sm_90", "sm_120", "sm_90a"})) == []


def test_reports_foreign_libraries() -> None:
    module = FakeModule(libraries=("libc.so.6", "ld-linux-x86-64.so.2", "libcudart.so.13"))
    (problem,) = check_fatbin.check_libraries(module)
    assert problem.startswith("needs the library libcudart.so.13")


def test_reports_spills_of_ptxas(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(
        "ptxas info    : Compiling entry function 'good' for 'sm_90'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Compiling entry function 'bad' for 'sm_120'\n"
        "    8 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads\n"
    )
    (problem,) = check_fatbin.check_ptxas_log(tmp_path)
    assert problem.startswith("bad for sm_120: 8 bytes stack frame")
    (tmp_path / "a").write_text("")
    (problem,) = check_fatbin.check_ptxas_log(tmp_path)
    assert problem.endswith("holds no report of ptxas")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90-real", {"sm_90"}),
        ("90,120-virtual", {"sm_90", "compute_90", "compute_120"}),
        ("90a-real;100f-real", {"sm_90a", "sm_100f"}),
        ("none", set()),
    ],
)
def test_parses_architectures(text: str, expected: set[str]) -> None:
    assert check_fatbin.parse_archs(text) == expected


def test_wrong_use_is_told_from_a_failed_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "empty.whl"
    zipfile.ZipFile(wheel, "w").close()
    assert check_fatbin.main([str(wheel)]) == 2
    assert "expected one compiled module, got none" in capsys.readouterr().err
    assert check_fatbin.main([str(tmp_path / "missing.so")]) == 2
    assert check_fatbin.main([__file__, "--archs", "hopper"]) == 2
