#include "../attention_decode.h"

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

void bind_attention_decode(py::module_& m) {
  m.def("attention_decode_workspace_bytes", &attention_decode_workspace_bytes, "rows"_a,
        "num_heads"_a, "max_positions"_a);
  m.def(
      "attention_decode",
      [](Address q_gate, Address k, Address v, Address q_norm, Address k_norm, Address inv_freq,
         Address position, Address k_cache, Address v_cache, Address k_scale, Address v_scale,
         Address workspace, Address out, std::int64_t rows, std::int64_t num_heads,
         std::int64_t num_kv_heads, std::int64_t max_positions, std::int64_t rotary_dim,
         std::int64_t q_gate_row_stride, std::int64_t k_row_stride, std::int64_t v_row_stride,
         std::int64_t out_row_stride, std::int64_t cache_head_stride,
         std::int64_t scale_head_stride, int x_dtype, int norm_dtype, int cache_dtype, float eps,
         float scale, int device, Address stream) {
        const AttentionDecodeParams params = {pointer<const void>(q_gate),
                                              pointer<const void>(k),
                                              pointer<const void>(v),
                                              pointer<const void>(q_norm),
                                              pointer<const void>(k_norm),
                                              pointer<const float>(inv_freq),
                                              pointer<const std::int32_t>(position),
                                              pointer<void>(k_cache),
                                              pointer<void>(v_cache),
                                              pointer<float>(k_scale),
                                              pointer<float>(v_scale),
                                              pointer<void>(workspace),
                                              pointer<void>(out),
                                              rows,
                                              num_heads,
                                              num_kv_heads,
                                              max_positions,
                                              rotary_dim,
                                              q_gate_row_stride,
                                              k_row_stride,
                                              v_row_stride,
                                              out_row_stride,
                                              cache_head_stride,
                                              scale_head_stride,
                                              static_cast<DType>(x_dtype),
                                              static_cast<DType>(norm_dtype),
                                              static_cast<DType>(cache_dtype),
                                              eps,
                                              scale,
                                              device};
        raise_if_failed(attention_decode(params, stream_of(stream)), "attention_decode",
                        {{"R", rows},
                         {"NH", num_heads},
                         {"NKV", num_kv_heads},
                         {"S", max_positions},
                         {"device", device}});
      },
      "q_gate"_a, "k"_a, "v"_a, "q_norm"_a, "k_norm"_a, "inv_freq"_a, "position"_a, "k_cache"_a,
      "v_cache"_a, "k_scale"_a, "v_scale"_a, "workspace"_a, "out"_a, py::kw_only(), "rows"_a,
      "num_heads"_a, "num_kv_heads"_a, "max_positions"_a, "rotary_dim"_a, "q_gate_row_stride"_a,
      "k_row_stride"_a, "v_row_stride"_a, "out_row_stride"_a, "cache_head_stride"_a,
      "scale_head_stride"_a, "x_dtype"_a, "norm_dtype"_a, "cache_dtype"_a, "eps"_a, "scale"_a,
      "device"_a, "stream"_a, Unlocked());
}

}  // namespace bytebound
