"""Builds bytebound_kernels._native for the emulated card: its kernels run on the CPU.

The sources of csrc are compiled as C++ beside those of emulation/, whose headers stand in the place
of the ones of the same name. An object is kept by the hash of all that it is made of, so that a
second session compiles nothing.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KERNELS = Path(__file__).parents[1]
COMPILERS = 2  # at the same time
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread", "-ffp-contract=off"]
# _setjmp and _longjmp change between stacks here, which a fortified libc takes for a fault.
FLAGS += ["-U_FORTIFY_SOURCE", "-fno-strict-aliasing", "-w"]
# Two modules in one process must not share the types that they show to Python.
FLAGS += ["-Dbytebound=emulated_bytebound"]
# The emulated card has no L2 cache to keep anything in.
LEFT_OUT = {"l2_persist"}
# What runs a kernel, whatever it computes.
ENGINE = {"block", "grid", "mbarrier"}
# A binding whose own functions have names that another one has too.
BOUND_ALONE = {"weight_stream.cpp"}


class CannotBuild(Exception):
    """What is missing here."""


def cuda_include() -> Path:
    """Return the folder of the CUDA toolkit's headers."""
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if nvcc is None:
        raise CannotBuild("no nvcc: the headers of the CUDA toolkit are needed")
    shown = subprocess.run(
        [nvcc, "-v", "--dryrun", "-x", "cu", "-c", os.devnull],
        text=True,
        capture_output=True,
        check=False,
    ).stderr
    for line in shown.splitlines():
        if "_TARGET_DIR_=" not in line and "TOP=" in line:
            top = Path(line.partition("TOP=")[2].strip())
            for folder in (top / "include", top / "targets/x86_64-linux/include"):
                if (folder / "cuda_fp16.h").exists():
                    return folder
    raise CannotBuild(f"{nvcc} does not say where the headers of the CUDA toolkit are")


def _pybind_include() -> str:
    try:
        import pybind11
    except ImportError:
        raise CannotBuild("no pybind11") from None
    return str(pybind11.get_include())


def _lay_out(folder: Path) -> list[Path]:
    """Lay out csrc with the emulation's headers in their places; return what is to be compiled."""
    shutil.copytree(KERNELS / "csrc", folder)
    shutil.copytree(KERNELS / "emulation", folder, dirs_exist_ok=True)
    units = [*folder.glob("*.cu"), *folder.glob("*.cpp")]
    # Few units: the headers of pybind11 take longer than everything in these files.
    bindings = {path.name for path in folder.glob("bindings/*.cpp")}
    for name, files in (("bindings_alone", BOUND_ALONE), ("bindings", bindings - BOUND_ALONE)):
        unit = folder / f"{name}.cpp"
        unit.write_text("".join(f'#include "bindings/{file}"\n' for file in sorted(files)))
        units.append(unit)
    # The largest first, so that no compiler is alone with it in the end.
    largest = ["bindings", "bindings_alone", "attention_decode"]
    units = [path for path in units if path.stem not in LEFT_OUT]
    return sorted(units, key=lambda path: (path.stem not in largest, path.name))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:6000]}")


class _Build:
    """One layout of the sources, in a folder of its own for the time of a ``with``."""

    def __init__(self) -> None:
        if shutil.which("g++") is None:
            raise CannotBuild("no g++")
        self.flags = [
            *FLAGS,
            "-DBYTEBOUND_WITH_CUDA",
            '-DBYTEBOUND_VERSION="emulated"',
            '-DBYTEBOUND_COMPILED_ARCHS="sm_90"',
            '-DBYTEBOUND_NO_CUDA_REASON=""',
            f"-I{cuda_include()}",
            f"-I{_pybind_include()}",
            f"-I{sysconfig.get_paths()['include']}",
        ]
        chosen = os.environ.get("BYTEBOUND_EMULATION_CACHE")
        own = Path(tempfile.gettempdir()) / f"bytebound-emulation-{os.getuid()}"
        self.cache = Path(chosen) if chosen else own
        self.cache.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __enter__(self) -> "_Build":
        self._scratch = tempfile.TemporaryDirectory(dir=self.cache)
        self.source = Path(self._scratch.name) / "csrc"
        self.units = _lay_out(self.source)
        hashed = hashlib.sha256(repr(self.flags).encode())
        for path in sorted(self.source.rglob("*")):
            if path.suffix in {".h", ".cuh"} or path.parent.name == "bindings":
                hashed.update(path.name.encode() + path.read_bytes())
        self._common = hashed.hexdigest()
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def link(self, units: list[Path], name: str) -> Path:
        """Compile and link, where that has not been done before; one session compiles at a time."""
        with (self.cache / "lock").open("w") as lock, ThreadPoolExecutor(COMPILERS) as pool:
            fcntl.flock(lock, fcntl.LOCK_EX)
            objects = list(pool.map(self._compile, units))
        key = hashlib.sha256(" ".join(path.name for path in objects).encode()).hexdigest()[:16]
        library = self.cache / key / name
        if not library.exists():
            made = Path(self._scratch.name) / name
            _run(["g++", "-shared", "-pthread", *map(str, objects), "-o", str(made)])
            library.parent.mkdir(exist_ok=True)
            made.replace(library)
        return library

    def _compile(self, unit: Path) -> Path:
        key = hashlib.sha256(self._common.encode() + unit.read_bytes()).hexdigest()[:16]
        kept = self.cache / f"{unit.stem}-{key}.o"
        if not kept.exists():
            flags = [*self.flags, f"-I{self.source}"]
            if unit.suffix == ".cu":
                flags += ["-include", str(self.source / "device.h")]
            if unit.stem.startswith("bindings"):
                flags.append("-O0")  # pybind11's templates take long to optimise
            made = unit.with_suffix(".o")
            _run(["g++", *flags, "-x", "c++", "-c", str(unit), "-o", str(made)])
            made.replace(kept)
        return kept


def build() -> Path:
    """Compile what is not compiled yet; return the native module.

    Raises:
        CannotBuild: a compiler or headers are missing here.
        RuntimeError: a source does not compile.
    """
    with _Build() as made:
        return made.link(made.units, f"_native{sysconfig.get_config_var('EXT_SUFFIX')}")


def build_kernel(source: Path) -> Path:
    """Compile one ``.cu`` file; return a library of the functions that it shows.

    Raises:
        CannotBuild: a compiler or headers are missing here.
        RuntimeError: it does not compile.
    """
    with _Build() as made:
        engine = [unit for unit in made.units if unit.stem in ENGINE]
        copied = Path(shutil.copy(source, made.source))
        return made.link([*engine, copied], f"{source.stem}.so")
