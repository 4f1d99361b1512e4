// The compiled module: what the build holds, the devices, and the list of its ops.
//
// Only the files of this folder know Python. Pointers and streams come in as integers; the Python
// side has checked types, shapes, strides and devices, which cannot be done from a bare pointer.
#include <string>

#include "../abi.h"
#include "../device_probe.h"
#include "../status.h"
#include "bind.h"

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

int pointer_device(Address address) {
  int device = -1;
  raise_if_failed(device_of_pointer(pointer<const void>(address), &device), "pointer_device", {});
  return device;
}

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
  bind_argmax(m);
  bind_attention_decode(m);
  bind_dense_matvec(m);
  bind_embedding_gather(m);
  bind_gdn_keep(m);
  bind_gdn_step(m);
  bind_history_append(m);
  bind_l2_persist(m);
  bind_logit_adjust(m);
  bind_logprobs(m);
  bind_read_bandwidth(m);
  bind_rms_norm(m);
  bind_rms_norm_project(m);
  bind_sample(m);
  bind_speculative_accept(m);
  bind_speculative_sample(m);
  bind_w4_matmul(m);
  bind_w4_matvec(m);
  bind_w4_pack(m);
  bind_w4_unpack(m);
  bind_weight_stream(m);
#else
  m.attr("built_with_cuda") = false;
#endif
}
