#include "../argmax.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_argmax(py::module_& m) {
  m.def("argmax_workspace_bytes", &argmax_workspace_bytes, "rows"_a);
  m.def(
      "argmax",
      [](Address logits, Address id_map, Address out, Address workspace, std::int64_t rows,
         std::int64_t n, std::int64_t row_stride, int dtype, int device, Address stream) {
        const ArgmaxParams params = {pointer<const void>(logits),
                                     pointer<const std::int32_t>(id_map),
                                     pointer<std::int32_t>(out),
                                     pointer<void>(workspace),
                                     rows,
                                     n,
                                     row_stride,
                                     static_cast<DType>(dtype),
                                     device};
        raise_if_failed(argmax(params, stream_of(stream)), "argmax",
                        {{"rows", rows}, {"N", n}, {"device", device}});
      },
      "logits"_a, "id_map"_a, "out"_a, "workspace"_a, py::kw_only(), "rows"_a, "n"_a,
      "row_stride"_a, "dtype"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
