#include "../l2_persist.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_l2_persist(py::module_& m) {
  m.def(
      "l2_persist_limits",
      [](int device) {
        L2PersistLimits limits = {};
        raise_if_failed(l2_persist_limits(device, &limits), "l2_persist", {{"device", device}});
        return std::pair(limits.set_aside_bytes, limits.window_bytes);
      },
      "device"_a);
  m.def(
      "l2_persist",
      [](Address memory, std::int64_t num_bytes, float hit_ratio, int device, Address stream) {
        std::int64_t set_aside_bytes = 0;
        raise_if_failed(l2_persist(pointer<const void>(memory), num_bytes, hit_ratio, device,
                                   stream_of(stream), &set_aside_bytes),
                        "l2_persist", {{"num_bytes", num_bytes}, {"device", device}});
        return set_aside_bytes;
      },
      "memory"_a, py::kw_only(), "num_bytes"_a, "hit_ratio"_a, "device"_a, "stream"_a, Unlocked());
  m.def(
      "l2_persist_reset",
      [](Address stream) {
        raise_if_failed(l2_persist_reset(stream_of(stream)), "l2_persist_reset", {});
      },
      "stream"_a, Unlocked());
}

}  // namespace bytebound
