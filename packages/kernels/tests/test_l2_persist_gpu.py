"""The access policy window, as the driver sees it: on the stream and in the nodes of a graph."""

import ctypes
from collections.abc import Iterator
from typing import Any

import bytebound_kernels as bk
import pytest
from bytebound_kernels import _native

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

_WINDOW, _PERSISTING, _KERNEL_NODE = 1, 2, 0  # of the driver's enumerations


class Window(ctypes.Structure):
    """CUaccessPolicyWindow, padded to the size of the union that holds it."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        ("num_bytes", ctypes.c_size_t),
        ("hit_ratio", ctypes.c_float),
        ("hit_property", ctypes.c_int),
        ("miss_property", ctypes.c_int),
        ("padding", ctypes.c_char * 64),
    ]


def driver(function: str, *arguments: Any) -> None:
    status = getattr(ctypes.CDLL("libcuda.so.1"), function)(*arguments)
    assert status == 0, f"{function}: {status}"


def window_of_stream(stream: Any) -> Window:
    window = Window()
    handle = ctypes.c_void_p(stream.cuda_stream)
    driver("cuStreamGetAttribute", handle, _WINDOW, ctypes.byref(window))
    return window


def windows_of_graph(graph: Any) -> list[Window]:
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    driver("cuGraphGetNodes", handle, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    driver("cuGraphGetNodes", handle, nodes, ctypes.byref(count))
    windows = []
    for node in nodes:
        kind, window = ctypes.c_int(), Window()
        driver("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value == _KERNEL_NODE:
            arguments = (ctypes.c_void_p(node), _WINDOW, ctypes.byref(window))
            driver("cuGraphKernelNodeGetAttribute", *arguments)
            windows.append(window)
    return windows


@pytest.fixture
def stream() -> Iterator[Any]:
    if _native.l2_persist_limits(0)[0] == 0:
        pytest.skip("this device sets no L2 aside")
    found = torch.cuda.Stream()
    yield found
    found.synchronize()
    bk.l2_persist_reset(found)


def test_sets_and_resets_the_window_of_the_stream(stream: Any) -> None:
    set_aside_max, window_max = _native.l2_persist_limits(0)
    memory = torch.zeros(1 << 20, device="cuda")
    kept = bk.l2_persist(memory, 3 << 20, stream=stream, hit_ratio=0.5)
    assert (3 << 19) <= kept <= set_aside_max <= window_max
    window = window_of_stream(stream)
    assert (window.base, window.num_bytes) == (memory.data_ptr(), 3 << 20)
    assert (window.hit_ratio, window.hit_property) == (0.5, _PERSISTING)

    # What is set aside only grows, and an address does as well as a tensor.
    assert bk.l2_persist(memory.data_ptr(), 4096, stream=stream) == kept
    assert window_of_stream(stream).num_bytes == 4096

    bk.l2_persist_reset(stream)
    assert window_of_stream(stream).num_bytes == 0


def test_asks_for_no_more_than_the_device_has(stream: Any) -> None:
    set_aside_max, window_max = _native.l2_persist_limits(0)
    memory = torch.empty(window_max + 256, dtype=torch.uint8, device="cuda")
    assert 0 < bk.l2_persist(memory, window_max, stream=stream) <= set_aside_max
    with pytest.raises(bk.InvalidArgumentError, match=f"expected at most {window_max}"):
        bk.l2_persist(memory, window_max + 1, stream=stream)


def test_refuses_host_memory(stream: Any) -> None:
    with pytest.raises(bk.UnsupportedDeviceError, match="on the host"):
        bk.l2_persist(torch.zeros(64), 64, stream=stream)


def test_a_captured_kernel_keeps_the_window_and_its_result(stream: Any) -> None:
    x = torch.randn(8, 5120, device="cuda", dtype=torch.bfloat16)
    weight, out = torch.zeros_like(x[0]), torch.empty_like(x)
    expected = bk.rms_norm(x, weight)
    torch.cuda.synchronize()
    bk.l2_persist(x, x.nbytes, stream=stream)
    with torch.cuda.stream(stream):
        bk.rms_norm(x, weight, out=out)
    stream.synchronize()
    assert torch.equal(out, expected)

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream):
        bk.rms_norm(x, weight, out=out)
    (window,) = windows_of_graph(graph)
    assert (window.base, window.num_bytes) == (x.data_ptr(), x.nbytes)
    bk.l2_persist_reset(stream)
    graph.instantiate()
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
