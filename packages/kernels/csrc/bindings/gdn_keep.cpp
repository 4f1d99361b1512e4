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
      [](Address projected, Address updates, Address pending_qkv, Address pending_updates,
         Address windows, Address num_accepted, const Strides& projected_strides,
         const Strides& updates_strides, const Strides& pending_strides,
         const Strides& pending_updates_strides, std::int64_t layers, std::int64_t channels,
         std::int64_t width, std::int64_t rows, int device, Address stream) {
        const GdnKeepParams params = {pointer<const void>(projected),
                                      pointer<const float>(updates),
                                      pointer<void>(pending_qkv),
                                      pointer<float>(pending_updates),
                                      pointer<void>(windows),
                                      pointer<const std::int32_t>(num_accepted),
                                      projected_strides[0],
                                      projected_strides[1],
                                      updates_strides[0],
                                      updates_strides[1],
                                      pending_strides[0],
                                      pending_strides[1],
                                      pending_updates_strides[0],
                                      pending_updates_strides[1],
                                      layers,
                                      channels,
                                      width,
                                      rows,
                                      device};
        raise_if_failed(gdn_keep(params, stream_of(stream)), "gdn_keep",
                        {{"rows", rows}, {"layers", layers}, {"C", channels}, {"device", device}});
      },
      "projected"_a, "updates"_a, "pending_qkv"_a, "pending_updates"_a, "windows"_a,
      "num_accepted"_a, py::kw_only(), "projected_strides"_a, "updates_strides"_a,
      "pending_strides"_a, "pending_updates_strides"_a, "layers"_a, "channels"_a, "width"_a,
      "rows"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
