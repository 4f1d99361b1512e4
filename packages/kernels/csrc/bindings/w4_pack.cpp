#include "../w4_pack.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_w4_pack(py::module_& m) {
  m.def(
      "w4_pack",
      [](Address packed, Address scale, Address zero_point, Address items, std::int64_t n,
         std::int64_t k, std::int64_t items_rows, std::int64_t first_row, int part, int device,
         Address stream) {
        const W4PackParams params = {pointer<const void>(packed),
                                     pointer<const void>(scale),
                                     pointer<const void>(zero_point),
                                     pointer<void>(items),
                                     n,
                                     k,
                                     items_rows,
                                     first_row,
                                     static_cast<W4Part>(part),
                                     device};
        raise_if_failed(w4_pack(params, stream_of(stream)), "w4_pack",
                        {{"N", n}, {"K", k}, {"device", device}});
      },
      "packed"_a, "scale"_a, "zero_point"_a, "items"_a, py::kw_only(), "n"_a, "k"_a, "items_rows"_a,
      "first_row"_a, "part"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
