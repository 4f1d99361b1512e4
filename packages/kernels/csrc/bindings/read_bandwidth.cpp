#include "../read_bandwidth.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_read_bandwidth(py::module_& m) {
  m.def(
      "read_bandwidth",
      [](Address memory, Address sink, std::int64_t num_bytes, int device, Address stream) {
        raise_if_failed(read_bandwidth(pointer<const void>(memory), num_bytes, pointer<void>(sink),
                                       device, stream_of(stream)),
                        "read_bandwidth", {{"bytes", num_bytes}, {"device", device}});
      },
      "memory"_a, "sink"_a, py::kw_only(), "num_bytes"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
