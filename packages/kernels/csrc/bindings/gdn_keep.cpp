#include "../gdn_keep.h"

#include <pybind11/stl.h>

#include <array>

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_gdn_keep(py::module_& m) {
  // Distances are pairs: from row to row, from layer to layer.
  using Strides = std::array<std::int64_t, 2>;
  m.def(
      "gdn_keep",
      [](Address projected, Address gates, Address pending_qkv, Address pending_gates,
         Address windows, Address num_accepted, const Strides& projected_strides,
         const Strides& gates_strides, const Strides& pending_strides,
         const Strides& pending_gates_strides, std::int64_t layers, std::int64_t channels,
         std::int64_t gate_channels, std::int64_t rows, int device, Address stream) {
        const GdnKeepParams params = {pointer<const void>(projected),
                                      pointer<const void>(gates),
                                      pointer<void>(pending_qkv),
                                      pointer<void>(pending_gates),
                                      pointer<void>(windows),
                                      pointer<const std::int32_t>(num_accepted),
                                      projected_strides[0],
                                      projected_strides[1],
                                      gates_strides[0],
                                      gates_strides[1],
                                      pending_strides[0],
                                      pending_strides[1],
                                      pending_gates_strides[0],
                                      pending_gates_strides[1],
                                      layers,
                                      channels,
                                      gate_channels,
                                      rows,
                                      device};
        raise_if_failed(gdn_keep(params, stream_of(stream)), "gdn_keep",
                        {{"rows", rows}, {"layers", layers}, {"C", channels}, {"device", device}});
      },
      "projected"_a, "gates"_a, "pending_qkv"_a, "pending_gates"_a, "windows"_a, "num_accepted"_a,
      py::kw_only(), "projected_strides"_a, "gates_strides"_a, "pending_strides"_a,
      "pending_gates_strides"_a, "layers"_a, "channels"_a, "gate_channels"_a, "rows"_a, "device"_a,
      "stream"_a, Unlocked());
}

}  // namespace bytebound
