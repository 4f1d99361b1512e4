"""Check the compiled module of a kernels wheel: GPU code, resources, libraries, symbols, size.

Reads the file formats itself, so it needs nothing but the standard library. Stack and spills come
from `cuobjdump` where it is found, or from the reports of BYTEBOUND_PTXAS_LOG.

    python tools/check_fatbin.py WHEEL_OR_SO [--archs 90-real,120] [--ptxas-log FOLDER]
                                 [--need-resources] [--max-mb 60]

`--archs` takes what BYTEBOUND_CUDA_ARCHS takes; default: all that the project supports; `none` for
a build without CUDA code. Exit code 0: all well; 1: something is not, one line each; 2: wrong use.
"""

import argparse
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ARCHS = "80-real,86-real,89-real,90-real,100-real,120-real,120-virtual"
MAX_MB = 60
ALLOWED_LIBRARIES = (
    "libc",
    "libm",
    "libstdc++",
    "libgcc_s",
    "ld-linux",
    "libpthread",
    "libdl",
    "librt",
)

_ELF_MAGIC = b"\x7fELF\x02\x01"  # 64-bit, little-endian
_FATBIN_MAGIC = 0xBA55ED50
_KIND_PTX, _KIND_CUBIN = 1, 2
_FLAG_ARCH_SPECIFIC, _FLAG_FAMILY = 1 << 20, 1 << 21  # the suffixes a and f

_CUOBJDUMP_FUNCTION = re.compile(r"^ *Function (?P<name>\S+?):?$", re.M)
_CUOBJDUMP_USAGE = re.compile(r"REG:(?P<reg>\d+) STACK:(?P<stack>\d+).*? LOCAL:(?P<local>\d+)")
_PTXAS_FUNCTION = re.compile(r"Compiling entry function '(?P<name>\S+)' for '(?P<arch>\w+)'")
_PTXAS_USAGE = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)
_ARCH_NAME = re.compile(r"(?P<number>\d+[af]?)(?:-(?P<kind>real|virtual))?")


class FormatError(Exception):
    """A file is not what its name says, or an argument cannot be read."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of an ELF file."""

    name: str
    data: bytes
    link: int  # index of the section with its strings


class Module:
    """A compiled Python module, as its ELF sections show it."""

    def __init__(self, name: str, content: bytes) -> None:
        if not content.startswith(_ELF_MAGIC):
            raise FormatError(f"{name}: not a 64-bit little-endian ELF file")
        self.name = name
        self.content = content
        self._sections = list(_read_sections(content))

    def _find(self, name: str) -> Section | None:
        return next((s for s in self._sections if s.name == name), None)

    def libraries(self) -> list[str]:
        """Return the libraries that the loader must find (DT_NEEDED)."""
        dynamic = self._find(".dynamic")
        if dynamic is None:
            return []
        strings = self._sections[dynamic.link].data
        entries = struct.iter_unpack("<qQ", dynamic.data)
        return [_string(strings, value) for tag, value in entries if tag == 1]

    def exported_symbols(self) -> list[str]:
        """Return the symbols that other libraries could bind to."""
        table = self._find(".dynsym")
        if table is None:
            return []
        strings = self._sections[table.link].data
        symbols = struct.iter_unpack("<IBBHQQ", table.data)
        # Section 0 is "undefined": a symbol that this module wants from others.
        return [_string(strings, name) for name, _, _, section, _, _ in symbols if section != 0]

    def fatbins(self) -> list[list[str]]:
        """Return what each compiled .cu file holds: sm_90 for machine code, compute_90 for PTX."""
        section = self._find(".nv_fatbin")
        return [] if section is None else list(_read_fatbins(section.data))


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def _read_sections(content: bytes) -> Iterator[Section]:
    (table_offset,) = struct.unpack_from("<Q", content, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", content, 58)
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", content, table_offset + i * entry_size)
        for i in range(count)
    ]
    names_offset, names_size = headers[names_index][4:6]
    names = content[names_offset : names_offset + names_size]
    for name, _, _, _, offset, size, link, _, _, _ in headers:
        yield Section(_string(names, name), content[offset : offset + size], link)


def _read_fatbins(data: bytes) -> Iterator[list[str]]:
    """Walk the containers; the headers are plain even where the code is compressed."""
    position = data.find(struct.pack("<I", _FATBIN_MAGIC))
    while position >= 0:
        header_size, size = struct.unpack_from("<HQ", data, position + 6)
        position += header_size
        end = position + size
        archs = []
        while position < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, position)
            number, _, _, flags = struct.unpack_from("<IIIQ", data, position + 28)
            if kind in (_KIND_PTX, _KIND_CUBIN):
                suffix = "a" if flags & _FLAG_ARCH_SPECIFIC else "f" if flags & _FLAG_FAMILY else ""
                prefix = "sm" if kind == _KIND_CUBIN else "compute"
                archs.append(f"{prefix}_{number}{suffix}")
            position += entry_header + entry_size
        yield archs
        position = data.find(struct.pack("<I", _FATBIN_MAGIC), end)


def parse_archs(text: str) -> set[str]:
    """Turn "90-real,120" into {"sm_90", "sm_120", "compute_120"}.

    Raises:
        FormatError: a name is not one of CMake's.
    """
    if text == "none":
        return set()
    archs = set()
    for name in re.split(r"[,; ]+", text.strip()):
        match = _ARCH_NAME.fullmatch(name)
        if match is None:
            raise FormatError(f"--archs holds {name!r}; expected e.g. 90-real, 120-virtual or 90")
        if match["kind"] != "virtual":
            archs.add(f"sm_{match['number']}")
        if match["kind"] != "real":
            archs.add(f"compute_{match['number']}")
    return archs


def find_cuobjdump() -> str | None:
    """Return the path of cuobjdump, from PATH or from the package that carries it."""
    found = shutil.which("cuobjdump")
    if found is None:
        site = Path(sysconfig.get_path("purelib"))
        found = next((str(file) for file in site.glob("nvidia/*/bin/cuobjdump")), None)
    return found


def check_archs(module: Module, expected: set[str]) -> Iterator[str]:
    """Yield what the GPU code lacks or has too much, over all and in each generic .cu file."""
    fatbins = module.fatbins()
    found = {arch for fatbin in fatbins for arch in fatbin}
    if found != expected:
        yield (
            f"GPU code: missing {_listed(expected - found)}, unexpected {_listed(found - expected)}"
        )
    generic = {arch for arch in expected if arch[-1] not in "af"}
    for i, fatbin in enumerate(fatbins):
        own = set(fatbin)
        # A file of its own for one architecture holds only names with a suffix.
        if not own & generic or own >= generic:
            continue
        yield f"GPU code: file {i} of {len(fatbins)} lacks {_listed(generic - own)}"


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def check_libraries(module: Module) -> Iterator[str]:
    """Yield each needed library that is not part of every Linux system."""
    for library in module.libraries():
        if not re.match(rf"({'|'.join(map(re.escape, ALLOWED_LIBRARIES))})(-|\.|$)", library):
            yield f"needs the library {library}; expected only {', '.join(ALLOWED_LIBRARIES)}"


def check_symbols(module: Module) -> Iterator[str]:
    """Yield each symbol of the CUDA runtime that another copy in the process could stand in for."""
    leaked = [name for name in module.exported_symbols() if re.match(r"(__)?cu(da)?[A-Z]", name)]
    if leaked:
        yield f"exports {len(leaked)} symbols of the CUDA runtime, such as {leaked[0]}"


def check_cuobjdump(module: Module, tool: str) -> Iterator[str]:
    """Yield each kernel with a stack frame or local memory, which is where registers spill to."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "module.so")
        file.write_bytes(module.content)
        command = [tool, "-res-usage", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"cuobjdump failed: {done.stderr.strip()}"
        return
    functions = _CUOBJDUMP_FUNCTION.findall(done.stdout)
    usages = list(_CUOBJDUMP_USAGE.finditer(done.stdout))
    if not usages or len(usages) != len(functions):
        yield f"cuobjdump: {len(functions)} functions, {len(usages)} lines of resource usage"
        return
    for name, usage in zip(functions, usages, strict=True):
        if int(usage["stack"]) or int(usage["local"]):
            yield f"{name}: {usage['stack']} bytes of stack, {usage['local']} of local memory"


def check_ptxas_log(folder: Path, archs: set[str]) -> Iterator[str]:
    """Yield each kernel that ptxas reported with a stack frame or spills, and what it left out.

    Args:
        folder: of BYTEBOUND_PTXAS_LOG, or one file of it.
        archs: "sm_90" for each architecture with machine code, all of which must be reported.
    """
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    reported: set[str] = set()
    silent: list[str] = []
    for file in files:
        kernel = ""
        for line in file.read_text(errors="replace").splitlines():
            function, usage = _PTXAS_FUNCTION.search(line), _PTXAS_USAGE.search(line)
            if function:
                kernel = f"{function['name']} for {function['arch']}"
                reported.add(function["arch"])
                silent.append(kernel)
            elif usage:
                if kernel in silent:
                    silent.remove(kernel)
                if any(int(number) for number in usage.groups()):
                    yield f"{kernel}: {usage.group()}"
    yield from (f"{kernel}: no line about stack and spills" for kernel in silent)
    missing = {arch for arch in archs if arch.startswith("sm_")} - reported
    if missing:
        yield f"{folder}: holds no report of ptxas for {_listed(missing)}"


def read_module(file: Path) -> tuple[Module, list[str]]:
    """Read the compiled module of a wheel, or a .so; also return the wheel's problems.

    Raises:
        FormatError: it is neither, or the wheel has no compiled module.
    """
    if file.suffix != ".whl":
        return Module(file.name, file.read_bytes()), []
    with zipfile.ZipFile(file) as wheel:
        names = wheel.namelist()
        modules = [n for n in names if re.search(r"/_native\.[^/]*so$", n)]
        if len(modules) != 1:
            raise FormatError(f"{file.name}: expected one compiled module, got {modules or 'none'}")
        wanted = ("/py.typed", "/_native.pyi", "/licenses/LICENSE")
        missing = [end for end in wanted if not any(n.endswith(end) for n in names)]
        return Module(modules[0], wheel.read(modules[0])), [f"lacks {end}" for end in missing]


def _check(options: argparse.Namespace) -> list[str]:
    module, problems = read_module(options.file)
    size_mb = options.file.stat().st_size / 1e6
    if size_mb > options.max_mb:
        problems.append(f"is {size_mb:.1f} MB; expected at most {options.max_mb:g}")
    expected = parse_archs(options.archs)
    problems += check_archs(module, expected)
    problems += check_libraries(module)
    problems += check_symbols(module)

    tool = find_cuobjdump()
    resources = "not checked: neither cuobjdump nor --ptxas-log"
    if expected and options.ptxas_log is not None:
        resources = "from ptxas"
        problems += check_ptxas_log(options.ptxas_log, expected)
    elif expected and tool is not None:
        resources = "from cuobjdump"
        problems += check_cuobjdump(module, tool)
    elif expected and options.need_resources:
        problems.append(f"resources {resources}")

    files = [", ".join(archs) for archs in module.fatbins()]
    print(f"{options.file.name}: {size_mb:.2f} MB, {len(files)} compiled .cu files")
    print(f"  GPU code:  {'; '.join(sorted(set(files))) or 'none'}")
    print(f"  libraries: {', '.join(module.libraries())}")
    print(f"  resources: {resources}")
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one wheel or module; return the exit code."""
    parser = argparse.ArgumentParser(description="Check the compiled module of a kernels wheel.")
    parser.add_argument("file", type=Path, metavar="WHEEL_OR_SO")
    parser.add_argument("--archs", default=DEFAULT_ARCHS, help=f"default: {DEFAULT_ARCHS}")
    parser.add_argument("--ptxas-log", type=Path, metavar="FOLDER", help="of BYTEBOUND_PTXAS_LOG")
    parser.add_argument("--need-resources", action="store_true", help="fail if not checkable")
    parser.add_argument("--max-mb", type=float, default=MAX_MB, help=f"default: {MAX_MB}")
    options = parser.parse_args(arguments)
    try:
        problems = _check(options)
    except (FormatError, OSError, zipfile.BadZipFile, struct.error) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(f"{options.file.name}: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
