#include "../speculative_accept.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_speculative_accept(py::module_& m) {
  m.def(
      "speculative_accept",
      [](Address ids, Address drafts, Address cycle, Address output, std::int64_t rows,
         std::int64_t capacity, int device, Address stream) {
        const SpeculativeAcceptParams params = {pointer<const std::int32_t>(ids),
                                                pointer<const std::int32_t>(drafts),
                                                pointer<std::int32_t>(cycle),
                                                pointer<std::int32_t>(output),
                                                rows,
                                                capacity,
                                                device};
        raise_if_failed(speculative_accept(params, stream_of(stream)), "speculative_accept",
                        {{"rows", rows}, {"capacity", capacity}, {"device", device}});
      },
      "ids"_a, "drafts"_a, "cycle"_a, "output"_a, py::kw_only(), "rows"_a, "capacity"_a, "device"_a,
      "stream"_a, Unlocked());
}

}  // namespace bytebound
