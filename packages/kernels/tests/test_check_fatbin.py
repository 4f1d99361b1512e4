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

    def exported_symbols(self) -> list[str]:
        return ["PyInit__native"]


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


CLEAN = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"


def compiled(kernel: str, arch: str, usage: str = CLEAN) -> str:
    """What ptxas writes about one kernel."""
    return (
        f"ptxas info    : Compiling entry function '{kernel}' for '{arch}'\n"
        f"ptxas info    : Function properties for {kernel}\n"
        f"    {usage}\n"
        f"ptxas info    : Used 32 registers, used 1 barriers\n"
    )


@pytest.mark.parametrize(
    "usage",
    [
        "8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
        "0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads",
        "0 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads",
    ],
)
def test_reports_spills_of_ptxas(tmp_path: Path, usage: str) -> None:
    (tmp_path / "a").write_text(compiled("good", "sm_90") + compiled("bad", "sm_120", usage))
    (problem,) = check_fatbin.check_ptxas_log(tmp_path, {"sm_90", "sm_120"})
    assert problem == f"bad for sm_120: {usage}"


def test_reports_what_ptxas_left_out(tmp_path: Path) -> None:
    archs = {"sm_90", "sm_120", "compute_120"}  # PTX is not compiled by ptxas
    (tmp_path / "a").write_text(compiled("one", "sm_90") + compiled("one", "sm_120"))
    assert list(check_fatbin.check_ptxas_log(tmp_path, archs)) == []
    (tmp_path / "a").write_text(compiled("one", "sm_90"))
    (problem,) = check_fatbin.check_ptxas_log(tmp_path, archs)
    assert problem.endswith("holds no report of ptxas for sm_120")
    (tmp_path / "a").write_text(compiled("one", "sm_90", "?") + compiled("one", "sm_120"))
    (problem,) = check_fatbin.check_ptxas_log(tmp_path, archs)
    assert problem == "one for sm_90: no line about stack and spills"
    (tmp_path / "a").write_text("")
    (problem,) = check_fatbin.check_ptxas_log(tmp_path, {"sm_90"})
    assert problem.endswith("holds no report of ptxas for sm_90")


@pytest.mark.parametrize(
    ("usage", "libraries", "max_mb", "problem"),
    [
        (CLEAN, ("libc.so.6",), "60", ""),
        (CLEAN.replace("0 bytes spill loads", "4 bytes spill loads"), (), "60", "4 bytes spill"),
        (CLEAN, ("libtorch.so",), "60", "needs the library libtorch.so"),
        (CLEAN, (), "0.00001", "expected at most"),
    ],
)
def test_one_fault_fails_the_whole_check(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    usage: str,
    libraries: tuple[str, ...],
    max_mb: str,
    problem: str,
) -> None:
    """As .ci/run calls it: the exit code is what stops a wheel."""
    module = FakeModule(fatbin((2, 90, 0), (2, 120, 0), (1, 120, 0)), libraries=libraries)
    monkeypatch.setattr(check_fatbin, "read_module", lambda file: (module, []))
    (tmp_path / "some.whl").write_bytes(b"\0" * 1000)
    log = tmp_path / "ptxas"
    log.mkdir()
    (log / "a").write_text(compiled("a", "sm_90") + compiled("a", "sm_120", usage))
    options = ["--archs", "90-real;120", "--ptxas-log", str(log), "--need-resources"]
    status = check_fatbin.main([str(tmp_path / "some.whl"), *options, "--max-mb", max_mb])
    assert status == (1 if problem else 0)
    assert problem in capsys.readouterr().out


def test_resources_that_cannot_be_checked_fail_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_fatbin, "read_module", lambda _: (FakeModule(fatbin((2, 90, 0))), []))
    monkeypatch.setattr(check_fatbin, "find_cuobjdump", lambda: None)
    (tmp_path / "some.whl").write_bytes(b"")
    options = [str(tmp_path / "some.whl"), "--archs", "90-real"]
    assert check_fatbin.main(options) == 0
    assert check_fatbin.main([*options, "--need-resources"]) == 1


def test_the_architectures_are_those_of_the_build() -> None:
    build = (Path(__file__).parent.parent / "cmake" / "cuda.cmake").read_text()
    for arch in check_fatbin.DEFAULT_ARCHS.split(","):
        assert f" {arch}" in build, f"{arch} is not in cmake/cuda.cmake"


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
