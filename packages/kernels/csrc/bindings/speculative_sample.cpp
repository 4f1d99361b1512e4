#include "../speculative_sample.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_speculative_sample(py::module_& m) {
  m.def("speculative_sample_workspace_bytes", &speculative_sample_workspace_bytes, "n"_a);
  m.def(
      "speculative_sample",
      [](Address weights, Address totals, Address drafts, Address draft_weights,
         Address draft_totals, Address seed, Address cycle, Address output, Address workspace,
         std::int64_t rows, std::int64_t n, std::int64_t capacity, int device, Address stream) {
        const SpeculativeSampleParams params = {pointer<const double>(weights),
                                                pointer<const double>(totals),
                                                pointer<const std::int32_t>(drafts),
                                                pointer<const double>(draft_weights),
                                                pointer<const double>(draft_totals),
                                                pointer<const std::int64_t>(seed),
                                                pointer<std::int32_t>(cycle),
                                                pointer<std::int32_t>(output),
                                                pointer<void>(workspace),
                                                rows,
                                                n,
                                                capacity,
                                                device};
        raise_if_failed(speculative_sample(params, stream_of(stream)), "speculative_sample",
                        {{"rows", rows}, {"N", n}, {"capacity", capacity}, {"device", device}});
      },
      "weights"_a, "totals"_a, "drafts"_a, "draft_weights"_a, "draft_totals"_a, "seed"_a, "cycle"_a,
      "output"_a, "workspace"_a, py::kw_only(), "rows"_a, "n"_a, "capacity"_a, "device"_a,
      "stream"_a, Unlocked());
}

}  // namespace bytebound
