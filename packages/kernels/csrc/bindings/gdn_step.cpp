#include "../gdn_step.h"

#include <pybind11/stl.h>

#include <array>

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

// Rows cross the binding as three pointers, their number, and three strides in elements.
using RowPointers = std::array<Address, 3>;
using RowStrides = std::array<std::int64_t, 3>;
using PendingPointers = std::array<Address, 2>;  // qkv, updates

GdnRows rows_of(const RowPointers& pointers, std::int64_t rows, const RowStrides& strides) {
  return {pointer<const void>(pointers[0]),
          pointer<const void>(pointers[1]),
          pointer<const void>(pointers[2]),
          rows,
          strides[0],
          strides[1],
          strides[2]};
}

}  // namespace

void bind_gdn_step(py::module_& m) {
  m.def(
      "gdn_step",
      [](const RowPointers& current, const PendingPointers& pending, Address z, Address out,
         Address num_accepted, Address conv_weight, Address a_log, Address dt_bias,
         Address norm_weight, Address conv_window, Address state, std::int64_t rows,
         std::int64_t pending_rows, const RowStrides& row_strides, std::int64_t z_row_stride,
         std::int64_t out_row_stride, std::int64_t h, std::int64_t hv, int dtype, float eps,
         bool commit, bool state_settled, int device, Address stream) {
        const GdnStepParams params = {
            rows_of(current, rows, row_strides),
            pointer<const void>(z),
            pointer<void>(out),
            z_row_stride,
            out_row_stride,
            {pointer<void>(pending[0]), pointer<float>(pending[1]), pending_rows},
            pointer<const std::int32_t>(num_accepted),
            pointer<const void>(conv_weight),
            pointer<const float>(a_log),
            pointer<const float>(dt_bias),
            pointer<const float>(norm_weight),
            pointer<void>(conv_window),
            pointer<float>(state),
            h,
            hv,
            static_cast<DType>(dtype),
            eps,
            commit,
            state_settled,
            device};
        raise_if_failed(gdn_step(params, stream_of(stream)), "gdn_step",
                        {{"rows", rows},
                         {"pending rows", pending_rows},
                         {"H", h},
                         {"HV", hv},
                         {"device", device}});
      },
      "current"_a, "pending"_a, py::kw_only(), "z"_a, "out"_a, "num_accepted"_a, "conv_weight"_a,
      "a_log"_a, "dt_bias"_a, "norm_weight"_a, "conv_window"_a, "state"_a, "rows"_a,
      "pending_rows"_a, "row_strides"_a, "z_row_stride"_a, "out_row_stride"_a, "h"_a, "hv"_a,
      "dtype"_a, "eps"_a, "commit"_a, "state_settled"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
