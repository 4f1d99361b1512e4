#include "../rms_norm.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_rms_norm(py::module_& m) {
  m.def(
      "rms_norm",
      [](Address x, Address weight, Address out, std::int64_t rows, std::int64_t d,
         std::int64_t x_row_stride, std::int64_t out_row_stride, int x_dtype, int weight_dtype,
         int out_dtype, float eps, int device, Address stream) {
        const RmsNormParams params = {pointer<const void>(x),
                                      pointer<const void>(weight),
                                      pointer<void>(out),
                                      rows,
                                      d,
                                      x_row_stride,
                                      out_row_stride,
                                      static_cast<DType>(x_dtype),
                                      static_cast<DType>(weight_dtype),
                                      static_cast<DType>(out_dtype),
                                      eps,
                                      device};
        raise_if_failed(rms_norm(params, stream_of(stream)), "rms_norm",
                        {{"rows", rows}, {"D", d}, {"device", device}});
      },
      "x"_a, "weight"_a, "out"_a, py::kw_only(), "rows"_a, "d"_a, "x_row_stride"_a,
      "out_row_stride"_a, "x_dtype"_a, "weight_dtype"_a, "out_dtype"_a, "eps"_a, "device"_a,
      "stream"_a, Unlocked());
}

}  // namespace bytebound
