#include "../rms_norm_project.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_rms_norm_project(py::module_& m) {
  m.def(
      "rms_norm_project",
      [](Address x, Address weight, Address projection, Address out, Address projected,
         std::int64_t x_row_stride, std::int64_t projection_row_stride, std::int64_t out_row_stride,
         std::int64_t projected_row_stride, std::int64_t rows, std::int64_t n, std::int64_t d,
         int dtype, float eps, int device, Address stream) {
        const RmsNormProjectParams params = {pointer<const float>(x),
                                             pointer<const float>(weight),
                                             pointer<const void>(projection),
                                             pointer<void>(out),
                                             pointer<void>(projected),
                                             x_row_stride,
                                             projection_row_stride,
                                             out_row_stride,
                                             projected_row_stride,
                                             rows,
                                             n,
                                             d,
                                             static_cast<DType>(dtype),
                                             eps,
                                             device};
        raise_if_failed(rms_norm_project(params, stream_of(stream)), "rms_norm_project",
                        {{"R", rows}, {"N", n}, {"D", d}, {"device", device}});
      },
      "x"_a, "weight"_a, "projection"_a, "out"_a, "projected"_a, py::kw_only(), "x_row_stride"_a,
      "projection_row_stride"_a, "out_row_stride"_a, "projected_row_stride"_a, "rows"_a, "n"_a,
      "d"_a, "dtype"_a, "eps"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
