#include "../w4_matvec.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_w4_matvec(py::module_& m) {
  m.def("matvec_blocks", &matvec_blocks, "items"_a, "most_blocks"_a);
  m.def("beside_blocks", &beside_blocks, "n"_a, "num_blocks"_a, "most_blocks"_a);
  m.def("matvec_workspace_bytes", &matvec_workspace_bytes, "num_blocks"_a);
  m.def(
      "w4_matvec",
      [](Address weight, Address x, Address out, Address residual, Address workspace,
         std::int64_t x_row_stride, std::int64_t out_row_stride, std::int64_t residual_row_stride,
         std::int64_t rows, std::int64_t n, std::int64_t k, int num_blocks, int x_dtype,
         int scale_dtype, bool asymmetric, bool float_out, int epilogue, float scale,
         Address beside_weight, Address beside_out, std::int64_t beside_weight_row_stride,
         std::int64_t beside_out_row_stride, std::int64_t beside_n, int beside_num_blocks,
         int device, Address stream) {
        const BesideParams beside = {pointer<const void>(beside_weight),
                                     pointer<void>(beside_out),
                                     beside_weight_row_stride,
                                     beside_out_row_stride,
                                     beside_n,
                                     beside_num_blocks};
        const W4MatvecParams params = {pointer<const void>(weight),
                                       pointer<const void>(x),
                                       pointer<void>(out),
                                       pointer<const void>(residual),
                                       pointer<void>(workspace),
                                       x_row_stride,
                                       out_row_stride,
                                       residual_row_stride,
                                       rows,
                                       n,
                                       k,
                                       num_blocks,
                                       static_cast<DType>(x_dtype),
                                       static_cast<DType>(scale_dtype),
                                       asymmetric,
                                       float_out,
                                       static_cast<MatvecEpilogue>(epilogue),
                                       scale,
                                       beside,
                                       device};
        raise_if_failed(w4_matvec(params, stream_of(stream)), "w4_matvec",
                        {{"R", rows}, {"N", n}, {"K", k}, {"device", device}});
      },
      "weight"_a, "x"_a, "out"_a, "residual"_a, "workspace"_a, py::kw_only(), "x_row_stride"_a,
      "out_row_stride"_a, "residual_row_stride"_a, "rows"_a, "n"_a, "k"_a, "num_blocks"_a,
      "x_dtype"_a, "scale_dtype"_a, "asymmetric"_a, "float_out"_a, "epilogue"_a, "scale"_a,
      "beside_weight"_a, "beside_out"_a, "beside_weight_row_stride"_a, "beside_out_row_stride"_a,
      "beside_n"_a, "beside_num_blocks"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
