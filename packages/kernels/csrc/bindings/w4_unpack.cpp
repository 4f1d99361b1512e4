#include "../w4_unpack.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_w4_unpack(py::module_& m) {
  m.def(
      "w4_unpack",
      [](Address weight, Address out, std::int64_t out_row_stride, std::int64_t n, std::int64_t k,
         int out_dtype, int scale_dtype, bool asymmetric, bool interleaved, int device,
         Address stream) {
        const W4UnpackParams params = {pointer<const void>(weight),
                                       pointer<void>(out),
                                       out_row_stride,
                                       n,
                                       k,
                                       static_cast<DType>(out_dtype),
                                       static_cast<DType>(scale_dtype),
                                       asymmetric,
                                       interleaved,
                                       device};
        raise_if_failed(w4_unpack(params, stream_of(stream)), "w4_unpack",
                        {{"N", n}, {"K", k}, {"device", device}});
      },
      "weight"_a, "out"_a, py::kw_only(), "out_row_stride"_a, "n"_a, "k"_a, "out_dtype"_a,
      "scale_dtype"_a, "asymmetric"_a, "interleaved"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
