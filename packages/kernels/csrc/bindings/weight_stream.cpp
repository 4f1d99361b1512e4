#include "../weight_stream.h"

#include <pybind11/stl.h>

#include <array>
#include <vector>

#include "bind.h"

namespace bytebound {

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

// Rows cross the binding as three pointers and three strides in elements.
using RowPointers = std::array<Address, 3>;
using RowStrides = std::array<std::int64_t, 3>;
using PendingPointers = std::array<Address, 2>;  // qkv, updates

StreamOp norm(Address x,
              Address weight,
              Address out,
              std::int64_t x_row_stride,
              std::int64_t out_row_stride,
              int d,
              float eps) {
  StreamOp op = {};
  op.kind = StreamKind::kNorm;
  op.norm = {pointer<const float>(x),
             pointer<const float>(weight),
             pointer<void>(out),
             x_row_stride,
             out_row_stride,
             d,
             eps};
  return op;
}

StreamOp gates(Address weight,
               Address out,
               std::int64_t weight_row_stride,
               std::int64_t out_row_stride,
               int n,
               int d) {
  StreamOp op = {};
  op.kind = StreamKind::kGates;
  op.gates = {
      pointer<const void>(weight), pointer<void>(out), weight_row_stride, out_row_stride, n, d};
  return op;
}

StreamOp product(Address weight,
                 Address x,
                 Address out,
                 Address residual,
                 std::int64_t x_row_stride,
                 std::int64_t out_row_stride,
                 std::int64_t residual_row_stride,
                 int n,
                 int k,
                 int scale_dtype,
                 bool asymmetric,
                 bool float_out,
                 int epilogue,
                 float scale) {
  StreamOp op = {};
  op.kind = StreamKind::kProduct;
  op.product = {pointer<const void>(weight),
                pointer<const void>(x),
                pointer<void>(out),
                pointer<const float>(residual),
                x_row_stride,
                out_row_stride,
                residual_row_stride,
                n,
                k,
                static_cast<DType>(scale_dtype),
                asymmetric,
                float_out,
                static_cast<MatvecEpilogue>(epilogue),
                scale};
  return op;
}

GdnRows rows_of(const RowPointers& pointers, std::int64_t rows, const RowStrides& strides) {
  return {pointer<const void>(pointers[0]),
          pointer<const void>(pointers[1]),
          pointer<const void>(pointers[2]),
          rows,
          strides[0],
          strides[1],
          strides[2]};
}

StreamOp gated_delta(bool replay,
                     const RowPointers& current,
                     const PendingPointers& pending,
                     Address z,
                     Address out,
                     Address updates,
                     Address num_accepted,
                     Address conv_weight,
                     Address a_log,
                     Address dt_bias,
                     Address norm_weight,
                     Address conv_window,
                     Address state,
                     std::int64_t pending_rows,
                     const RowStrides& row_strides,
                     std::int64_t z_row_stride,
                     std::int64_t out_row_stride,
                     std::int64_t updates_row_stride,
                     std::int64_t h,
                     std::int64_t hv,
                     float eps) {
  StreamOp op = {};
  op.kind = replay ? StreamKind::kReplay : StreamKind::kGatedDelta;
  op.delta = {rows_of(current, 0, row_strides),
              pointer<const void>(z),
              pointer<void>(out),
              pointer<float>(updates),
              z_row_stride,
              out_row_stride,
              updates_row_stride,
              pointer<const void>(pending[0]),
              pointer<const float>(pending[1]),
              pending_rows,
              pointer<const std::int32_t>(num_accepted),
              pointer<const void>(conv_weight),
              pointer<const float>(a_log),
              pointer<const float>(dt_bias),
              pointer<const float>(norm_weight),
              pointer<const void>(conv_window),
              pointer<float>(state),
              h,
              hv,
              eps};
  return op;
}

StreamOp embedding(Address ids,
                   Address table,
                   Address out,
                   std::int64_t table_row_stride,
                   std::int64_t out_row_stride,
                   int n,
                   int d) {
  StreamOp op = {};
  op.kind = StreamKind::kEmbedding;
  op.embedding = {pointer<const std::int32_t>(ids),
                  pointer<const void>(table),
                  pointer<float>(out),
                  table_row_stride,
                  out_row_stride,
                  n,
                  d};
  return op;
}

StreamOp attention(const RowPointers& rows,
                   const RowStrides& row_strides,
                   Address q_norm,
                   Address k_norm,
                   Address inv_freq,
                   Address position,
                   Address k_cache,
                   Address v_cache,
                   Address k_scale,
                   Address v_scale,
                   Address workspace,
                   Address arrived,
                   Address out,
                   std::int64_t out_row_stride,
                   std::int64_t num_heads,
                   std::int64_t num_kv_heads,
                   std::int64_t max_positions,
                   std::int64_t rotary_dim,
                   std::int64_t cache_head_stride,
                   std::int64_t scale_head_stride,
                   int norm_dtype,
                   int cache_dtype,
                   float eps,
                   float scale) {
  StreamOp op = {};
  op.kind = StreamKind::kAttention;
  op.attention = {{pointer<const void>(rows[0]),
                   pointer<const void>(rows[1]),
                   pointer<const void>(rows[2]),
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
                   0,
                   num_heads,
                   num_kv_heads,
                   max_positions,
                   rotary_dim,
                   row_strides[0],
                   row_strides[1],
                   row_strides[2],
                   out_row_stride,
                   cache_head_stride,
                   scale_head_stride,
                   DType::kFloat16,
                   static_cast<DType>(norm_dtype),
                   static_cast<DType>(cache_dtype),
                   eps,
                   scale,
                   0},
                  pointer<std::int32_t>(arrived)};
  return op;
}

}  // namespace

void bind_weight_stream(py::module_& m) {
  py::class_<StreamOp>(m, "StreamOp", py::module_local());
  py::class_<StreamPlan>(m, "StreamPlan", py::module_local());
  m.attr("STREAM_MAX_OPS") = kStreamMaxOps;
  m.attr("STREAM_OP_BYTES") = kStreamOpBytes;
  m.def("stream_norm", &norm, py::kw_only(), "x"_a, "weight"_a, "out"_a, "x_row_stride"_a,
        "out_row_stride"_a, "d"_a, "eps"_a);
  m.def("stream_gates", &gates, py::kw_only(), "weight"_a, "out"_a, "weight_row_stride"_a,
        "out_row_stride"_a, "n"_a, "d"_a);
  m.def("stream_product", &product, py::kw_only(), "weight"_a, "x"_a, "out"_a, "residual"_a,
        "x_row_stride"_a, "out_row_stride"_a, "residual_row_stride"_a, "n"_a, "k"_a,
        "scale_dtype"_a, "asymmetric"_a, "float_out"_a, "epilogue"_a, "scale"_a);
  m.def("stream_gated_delta", &gated_delta, py::kw_only(), "replay"_a, "current"_a, "pending"_a,
        "z"_a, "out"_a, "updates"_a, "num_accepted"_a, "conv_weight"_a, "a_log"_a, "dt_bias"_a,
        "norm_weight"_a, "conv_window"_a, "state"_a, "pending_rows"_a, "row_strides"_a,
        "z_row_stride"_a, "out_row_stride"_a, "updates_row_stride"_a, "h"_a, "hv"_a, "eps"_a);
  m.def("weight_stream_workspace_bytes", &weight_stream_workspace_bytes, "num_sms"_a);
  m.def("stream_embedding", &embedding, py::kw_only(), "ids"_a, "table"_a, "out"_a,
        "table_row_stride"_a, "out_row_stride"_a, "n"_a, "d"_a);
  m.def("stream_attention", &attention, py::kw_only(), "rows"_a, "row_strides"_a, "q_norm"_a,
        "k_norm"_a, "inv_freq"_a, "position"_a, "k_cache"_a, "v_cache"_a, "k_scale"_a, "v_scale"_a,
        "workspace"_a, "arrived"_a, "out"_a, "out_row_stride"_a, "num_heads"_a, "num_kv_heads"_a,
        "max_positions"_a, "rotary_dim"_a, "cache_head_stride"_a, "scale_head_stride"_a,
        "norm_dtype"_a, "cache_dtype"_a, "eps"_a, "scale"_a);
  m.def(
      "weight_stream_slots",
      [](int rows, int max_d, bool attention, bool asymmetric, int device) {
        StreamPlan plan;
        plan.max_d = max_d;
        plan.has_delta = true;
        plan.has_attention = attention;
        plan.asymmetric = asymmetric;
        plan.device = device;
        return weight_stream_slots(plan, rows);
      },
      "rows"_a, "max_d"_a, "attention"_a, "asymmetric"_a, "device"_a);
  m.def(
      "weight_stream_plan",
      [](const std::vector<StreamOp>& ops, Address table, int device, Address stream) {
        StreamPlan plan;
        const auto num_ops = static_cast<int>(ops.size());
        raise_if_failed(weight_stream_plan(ops.data(), num_ops, device, pointer<void>(table),
                                           stream_of(stream), &plan),
                        "weight_stream", {{"ops", num_ops}, {"device", device}});
        return plan;
      },
      "ops"_a, py::kw_only(), "table"_a, "device"_a, "stream"_a);
  m.def(
      "weight_stream",
      [](const StreamPlan& plan, Address table, int rows, Address workspace, Address clock,
         Address stream) {
        const WeightStreamParams params = {plan, pointer<const void>(table), rows,
                                           pointer<void>(workspace), pointer<std::int64_t>(clock)};
        raise_if_failed(weight_stream(params, stream_of(stream)), "weight_stream",
                        {{"ops", plan.num_ops}, {"R", rows}, {"device", plan.device}});
      },
      "plan"_a, py::kw_only(), "table"_a, "rows"_a, "workspace"_a, "clock"_a, "stream"_a,
      Unlocked());
}

}  // namespace bytebound
