#include "../dense_matvec.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_dense_matvec(py::module_& m) {
  m.def(
      "dense_matvec",
      [](Address weight, Address up, Address x, Address out, Address residual, Address workspace,
         std::int64_t weight_row_stride, std::int64_t up_row_stride, std::int64_t x_row_stride,
         std::int64_t out_row_stride, std::int64_t residual_row_stride, std::int64_t rows,
         std::int64_t n, std::int64_t k, int num_blocks, int x_dtype, bool float_out, int epilogue,
         float scale, int device, Address stream) {
        const DenseMatvecParams params = {pointer<const void>(weight),
                                          pointer<const void>(up),
                                          pointer<const void>(x),
                                          pointer<void>(out),
                                          pointer<const void>(residual),
                                          pointer<void>(workspace),
                                          weight_row_stride,
                                          up_row_stride,
                                          x_row_stride,
                                          out_row_stride,
                                          residual_row_stride,
                                          rows,
                                          n,
                                          k,
                                          num_blocks,
                                          static_cast<DType>(x_dtype),
                                          float_out,
                                          static_cast<MatvecEpilogue>(epilogue),
                                          scale,
                                          device};
        raise_if_failed(dense_matvec(params, stream_of(stream)), "dense_matvec",
                        {{"R", rows}, {"N", n}, {"K", k}, {"device", device}});
      },
      "weight"_a, "up"_a, "x"_a, "out"_a, "residual"_a, "workspace"_a, py::kw_only(),
      "weight_row_stride"_a, "up_row_stride"_a, "x_row_stride"_a, "out_row_stride"_a,
      "residual_row_stride"_a, "rows"_a, "n"_a, "k"_a, "num_blocks"_a, "x_dtype"_a, "float_out"_a,
      "epilogue"_a, "scale"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
