#include "../history_append.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_history_append(py::module_& m) {
  m.def(
      "history_append",
      [](Address ids, Address num_ids, Address seen, Address counts, std::int64_t capacity,
         std::int64_t n, int device, Address stream) {
        const HistoryAppendParams params = {pointer<const std::int32_t>(ids),
                                            pointer<const std::int32_t>(num_ids),
                                            pointer<std::uint8_t>(seen),
                                            pointer<std::int32_t>(counts),
                                            capacity,
                                            n,
                                            device};
        raise_if_failed(history_append(params, stream_of(stream)), "history_append",
                        {{"capacity", capacity}, {"N", n}, {"device", device}});
      },
      "ids"_a, "num_ids"_a, "seen"_a, "counts"_a, py::kw_only(), "capacity"_a, "n"_a, "device"_a,
      "stream"_a, Unlocked());
}

}  // namespace bytebound
