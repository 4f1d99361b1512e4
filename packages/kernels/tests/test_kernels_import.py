"""The package imports anywhere, touches no CUDA at import, and says what it was built with."""

import multiprocessing
import subprocess
import sys
from importlib.metadata import metadata, version

import bytebound_kernels
from bytebound_kernels import _device, _native

WITHOUT_FRAMEWORKS = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "cupy"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block())
import bytebound_kernels as bk
from bytebound_kernels import _device
assert _device._availability.cache_info().currsize == 0, "the import asked the driver"
print(bk.cuda_status())
x = memoryview(b"")
try:
    bk.rms_norm(x, x)
except bk.UnsupportedTensorError as error:
    print(error)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_and_reports_without_any_framework() -> None:
    status, error = run(WITHOUT_FRAMEWORKS).splitlines()
    assert status.startswith(("usable: ", "not usable: "))
    assert error.startswith("rms_norm: x is a memoryview; expected a tensor")


def status_in_child(queue: "multiprocessing.Queue[tuple[int, str]]") -> None:
    asked_before = _device._availability.cache_info().currsize
    queue.put((asked_before, bytebound_kernels.cuda_status()))


def test_a_forked_child_asks_for_itself() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
import multiprocessing
import bytebound_kernels
from test_kernels_import import status_in_child
context = multiprocessing.get_context("fork")
for ask_first in (False, True):
    if ask_first:
        bytebound_kernels.cuda_status()
    queue = context.Queue()
    child = context.Process(target=status_in_child, args=(queue,))
    child.start()
    print(queue.get(timeout=30))
    child.join(30)
    assert child.exitcode == 0
"""
    before_parent, after_parent = run(code).splitlines()
    assert before_parent.startswith("(0, ")
    assert after_parent.startswith("(0, ")


def test_says_what_it_was_built_with() -> None:
    assert bytebound_kernels.__version__ == version("bytebound-kernels")
    assert isinstance(bytebound_kernels.ABI_VERSION, int)
    if bytebound_kernels.built_with_cuda:
        major, minor = bytebound_kernels.cuda_toolkit_version.split(".")
        assert int(major) >= 12 and int(minor) >= 0
        assert bytebound_kernels.compiled_archs
        assert _native.no_cuda_reason == ""
    else:
        assert bytebound_kernels.cuda_toolkit_version is None
        assert bytebound_kernels.compiled_archs == ()
        assert _native.no_cuda_reason


def test_needs_no_other_distribution() -> None:
    requirements = metadata("bytebound-kernels").get_all("Requires-Dist") or []
    assert [r for r in requirements if "extra == 'prefill'" not in r.replace('"', "'")] == []


def test_every_public_name_exists() -> None:
    missing = [n for n in bytebound_kernels.__all__ if not hasattr(bytebound_kernels, n)]
    assert missing == []
