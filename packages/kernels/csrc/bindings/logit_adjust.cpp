#include "../logit_adjust.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_logit_adjust(py::module_& m) {
  m.def(
      "logit_adjust",
      [](Address logits, Address out, Address settings, Address seen, Address counts,
         Address generated, Address drafts, Address bias_ids, Address bias_values,
         Address banned_ids, Address end_ids, std::int64_t rows, std::int64_t n,
         std::int64_t row_stride, std::int64_t out_row_stride, std::int64_t num_bias,
         std::int64_t num_banned, std::int64_t num_end, bool allow_minus_infinity, int device,
         Address stream) {
        const LogitAdjustParams params = {pointer<const float>(logits),
                                          pointer<float>(out),
                                          pointer<const double>(settings),
                                          pointer<const std::uint8_t>(seen),
                                          pointer<const std::int32_t>(counts),
                                          pointer<const std::int32_t>(generated),
                                          pointer<const std::int32_t>(drafts),
                                          pointer<const std::int32_t>(bias_ids),
                                          pointer<const float>(bias_values),
                                          pointer<const std::int32_t>(banned_ids),
                                          pointer<const std::int32_t>(end_ids),
                                          rows,
                                          n,
                                          row_stride,
                                          out_row_stride,
                                          num_bias,
                                          num_banned,
                                          num_end,
                                          allow_minus_infinity,
                                          device};
        raise_if_failed(logit_adjust(params, stream_of(stream)), "logit_adjust",
                        {{"rows", rows}, {"N", n}, {"device", device}});
      },
      "logits"_a, "out"_a, "settings"_a, "seen"_a, "counts"_a, "generated"_a, "drafts"_a,
      "bias_ids"_a, "bias_values"_a, "banned_ids"_a, "end_ids"_a, py::kw_only(), "rows"_a, "n"_a,
      "row_stride"_a, "out_row_stride"_a, "num_bias"_a, "num_banned"_a, "num_end"_a,
      "allow_minus_infinity"_a, "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
