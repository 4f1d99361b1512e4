#include "../embedding_gather.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_embedding_gather(py::module_& m) {
  m.def(
      "embedding_gather",
      [](Address ids, Address table, Address out, std::int64_t rows, std::int64_t n, std::int64_t d,
         std::int64_t table_row_stride, std::int64_t out_row_stride, int table_dtype, int out_dtype,
         int device, Address stream) {
        const EmbeddingGatherParams params = {pointer<const std::int32_t>(ids),
                                              pointer<const void>(table),
                                              pointer<void>(out),
                                              rows,
                                              n,
                                              d,
                                              table_row_stride,
                                              out_row_stride,
                                              static_cast<DType>(table_dtype),
                                              static_cast<DType>(out_dtype),
                                              device};
        raise_if_failed(embedding_gather(params, stream_of(stream)), "embedding_gather",
                        {{"rows", rows}, {"N", n}, {"D", d}, {"device", device}});
      },
      "ids"_a, "table"_a, "out"_a, py::kw_only(), "rows"_a, "n"_a, "d"_a, "table_row_stride"_a,
      "out_row_stride"_a, "table_dtype"_a, "out_dtype"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
