#include "../logprobs.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_logprobs(py::module_& m) {
  m.def("logprobs_workspace_bytes", &logprobs_workspace_bytes, "rows"_a, "n"_a, "num_top"_a);
  m.def(
      "logprobs",
      [](Address logits, Address ids, Address out_values, Address out_ids, Address workspace,
         std::int64_t rows, std::int64_t n, std::int64_t row_stride, std::int64_t num_top,
         int device, Address stream) {
        const LogprobsParams params = {pointer<const float>(logits),
                                       pointer<const std::int32_t>(ids),
                                       pointer<double>(out_values),
                                       pointer<std::int32_t>(out_ids),
                                       pointer<void>(workspace),
                                       rows,
                                       n,
                                       row_stride,
                                       num_top,
                                       device};
        raise_if_failed(logprobs(params, stream_of(stream)), "logprobs",
                        {{"rows", rows}, {"N", n}, {"n", num_top}, {"device", device}});
      },
      "logits"_a, "ids"_a, "out_values"_a, "out_ids"_a, "workspace"_a, py::kw_only(), "rows"_a,
      "n"_a, "row_stride"_a, "num_top"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
