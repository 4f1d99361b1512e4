// The only file that knows Python. Pointers and streams come in as integers; the Python side has
// checked types, shapes, strides and devices, which cannot be done from a bare pointer.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "abi.h"
#include "device_probe.h"
#include "status.h"

#ifdef BYTEBOUND_WITH_CUDA
#include "read_bandwidth.h"
#include "rms_norm.h"
#endif

namespace py = pybind11;
using namespace pybind11::literals;

namespace bytebound {
namespace {

// CudaError lives in Python, where its base class is; it is looked up only when one is raised.
void translate_status_error(std::exception_ptr pending) {
  try {
    if (pending) {
      std::rethrow_exception(pending);
    }
  } catch (const StatusError& error) {
    const py::object type = py::module_::import("bytebound_kernels.errors").attr("CudaError");
    const py::object instance = type(error.what(), "name"_a = error.name, "code"_a = error.status);
    PyErr_SetObject(type.ptr(), instance.ptr());
  }
}

py::tuple compiled_archs() {
  py::list names;
  std::string name;
  for (const char c : std::string(BYTEBOUND_COMPILED_ARCHS) + ",") {
    if (c != ',') {
      name += c;
    } else if (!name.empty()) {
      names.append(name);
      name.clear();
    }
  }
  return py::tuple(names);
}

py::object toolkit_version_text() {
  const int version = toolkit_version();  // 1000 * major + 10 * minor
  if (version == 0) {
    return py::none();
  }
  return py::str(std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10));
}

py::dict probe() {
  const Probe found = probe_devices();
  py::list devices;
  for (const DeviceInfo& device : found.devices) {
    devices.append(py::dict("index"_a = device.index, "name"_a = device.name,
                            "capability"_a = py::make_tuple(device.major, device.minor),
                            "num_sms"_a = device.num_sms, "l2_bytes"_a = device.l2_bytes,
                            "memory_bytes"_a = device.memory_bytes));
  }
  return py::dict("error"_a = status_name(found.status), "error_text"_a = status_text(found.status),
                  "driver_version"_a = found.driver_version, "devices"_a = devices);
}

int pointer_device(std::uintptr_t pointer) {
  int device = -1;
  raise_if_failed(device_of_pointer(reinterpret_cast<const void*>(pointer), &device),
                  "pointer_device", {});
  return device;
}

#ifdef BYTEBOUND_WITH_CUDA

void bind_rms_norm(py::module_& m) {
  m.def(
      "rms_norm",
      [](std::uintptr_t x, std::uintptr_t weight, std::uintptr_t out, std::int64_t rows,
         std::int64_t d, std::int64_t x_row_stride, std::int64_t out_row_stride, int x_dtype,
         int weight_dtype, float eps, int device, std::uintptr_t stream) {
        const RmsNormParams params = {reinterpret_cast<const void*>(x),
                                      reinterpret_cast<const void*>(weight),
                                      reinterpret_cast<void*>(out),
                                      rows,
                                      d,
                                      x_row_stride,
                                      out_row_stride,
                                      static_cast<DType>(x_dtype),
                                      static_cast<DType>(weight_dtype),
                                      eps,
                                      device};
        raise_if_failed(rms_norm(params, reinterpret_cast<void*>(stream)), "rms_norm",
                        {{"rows", rows}, {"D", d}, {"device", device}});
      },
      "x"_a, "weight"_a, "out"_a, py::kw_only(), "rows"_a, "d"_a, "x_row_stride"_a,
      "out_row_stride"_a, "x_dtype"_a, "weight_dtype"_a, "eps"_a, "device"_a, "stream"_a,
      py::call_guard<py::gil_scoped_release>());
}

void bind_read_bandwidth(py::module_& m) {
  m.def(
      "read_bandwidth",
      [](std::uintptr_t memory, std::uintptr_t sink, std::int64_t num_bytes, int device,
         std::uintptr_t stream) {
        raise_if_failed(
            read_bandwidth(reinterpret_cast<const void*>(memory), num_bytes,
                           reinterpret_cast<void*>(sink), device, reinterpret_cast<void*>(stream)),
            "read_bandwidth", {{"bytes", num_bytes}, {"device", device}});
      },
      "memory"_a, "sink"_a, py::kw_only(), "num_bytes"_a, "device"_a, "stream"_a,
      py::call_guard<py::gil_scoped_release>());
}

#endif

}  // namespace
}  // namespace bytebound

PYBIND11_MODULE(_native, m) {
  using namespace bytebound;
  py::register_exception_translator(&translate_status_error);
  m.attr("version") = BYTEBOUND_VERSION;
  m.attr("ABI_VERSION") = kAbiVersion;
  m.attr("cuda_toolkit_version") = toolkit_version_text();
  m.attr("compiled_archs") = compiled_archs();
  m.attr("no_cuda_reason") = BYTEBOUND_NO_CUDA_REASON;
  m.def("probe", &probe);
  m.def("pointer_device", &pointer_device, "pointer"_a);
#ifdef BYTEBOUND_WITH_CUDA
  m.attr("built_with_cuda") = true;
  bind_read_bandwidth(m);
  bind_rms_norm(m);
#else
  m.attr("built_with_cuda") = false;
#endif
}
