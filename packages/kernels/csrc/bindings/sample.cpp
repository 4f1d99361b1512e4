#include "../sample.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_sample(py::module_& m) {
  m.def("sample_workspace_bytes", &sample_workspace_bytes, "rows"_a, "n"_a);
  m.def(
      "sample",
      [](Address logits, Address settings, Address seed, Address position, Address out,
         Address weights, Address totals, Address workspace, std::int64_t rows, std::int64_t n,
         std::int64_t row_stride, std::int64_t position_offset, int purpose, bool with_top_k,
         bool with_top_p, int device, Address stream) {
        const SampleParams params = {pointer<const float>(logits),
                                     pointer<const double>(settings),
                                     pointer<const std::int64_t>(seed),
                                     pointer<const std::int32_t>(position),
                                     pointer<std::int32_t>(out),
                                     pointer<double>(weights),
                                     pointer<double>(totals),
                                     pointer<void>(workspace),
                                     rows,
                                     n,
                                     row_stride,
                                     position_offset,
                                     purpose,
                                     with_top_k,
                                     with_top_p,
                                     device};
        raise_if_failed(sample(params, stream_of(stream)), "sample",
                        {{"rows", rows}, {"N", n}, {"device", device}});
      },
      "logits"_a, "settings"_a, "seed"_a, "position"_a, "out"_a, "weights"_a, "totals"_a,
      "workspace"_a, py::kw_only(), "rows"_a, "n"_a, "row_stride"_a, "position_offset"_a,
      "purpose"_a, "with_top_k"_a, "with_top_p"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
