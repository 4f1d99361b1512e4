// The table of a weight stream's program, worked out by the host: it knows the device, but not the
// number of rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "delta_rule.cuh"
#include "stream_attention.cuh"
#include "stream_norm.cuh"
#include "stream_program.cuh"

namespace bytebound {

inline bool is_sound(const StreamOp& op) {
  switch (op.kind) {
    case StreamKind::kNorm:
      return op.norm.d >= kGroup && op.norm.d % kGroup == 0 && op.norm.d <= kNormMaxD;
    case StreamKind::kGates:
      return op.gates.n >= 1 && op.gates.d % kGroup == 0 && op.gates.d <= kNormMaxD;
    case StreamKind::kProduct:
      return op.product.n >= 1 && op.product.k >= kGroup && op.product.k % kGroup == 0;
    case StreamKind::kReplay:
    case StreamKind::kGatedDelta:
      return op.delta.h >= 1 && op.delta.hv % op.delta.h == 0 && op.delta.pending_rows >= 0 &&
             op.delta.pending_rows <= kGdnMaxRows;
    case StreamKind::kEmbedding:
      return op.embedding.n >= 1 && op.embedding.d >= kChunk && op.embedding.d % kChunk == 0;
    case StreamKind::kAttention: {
      AttentionDecodeParams decode = op.attention.decode;
      decode.rows = kStreamMaxRows;
      const bool has_cache = decode.cache_dtype == DType::kFloat16 ||
                             decode.cache_dtype == DType::kBFloat16 ||
                             decode.cache_dtype == DType::kFloat8E4M3;
      return attention_sizes_fit(decode) && attention_args_of(decode, 0).vector && has_cache &&
             decode.x_dtype == DType::kFloat16 &&
             (decode.norm_dtype == DType::kFloat16 || decode.norm_dtype == DType::kFloat32);
    }
  }
  return false;
}

inline DeltaRows rows_of(const GdnRows& rows) {
  return {static_cast<const __half*>(rows.qkv),
          static_cast<const __half*>(rows.a),
          static_cast<const __half*>(rows.b),
          rows.qkv_row_stride,
          rows.a_row_stride,
          rows.b_row_stride};
}

inline Shares shares_of(std::int64_t items, std::int64_t warps) {
  const std::int64_t busy = std::min(items, warps);
  return {static_cast<int>(items), static_cast<int>(items / busy),
          static_cast<unsigned>((items % busy << 32) / busy), static_cast<int>(busy)};
}

inline GatesTask task_of(const StreamGates& p) {
  return {static_cast<const __half*>(p.weight),
          static_cast<__half*>(p.out),
          p.weight_row_stride,
          p.out_row_stride,
          p.n,
          p.d,
          rms_threads(p.d)};
}

inline ProductTask task_of(const StreamProduct& p, int num_teams) {
  const std::int64_t rows = p.epilogue == MatvecEpilogue::kSwiGlu ? 2 * std::int64_t{p.n} : p.n;
  const std::int64_t groups = p.k / kGroup;
  const std::int64_t items = (rows + kItemRows - 1) / kItemRows * groups;
  ProductTask task = {};
  task.p_weight = static_cast<const unsigned char*>(p.weight);
  task.p_x = static_cast<const __half*>(p.x);
  task.x_row_stride = p.x_row_stride;
  task.num_groups = static_cast<int>(groups);
  // As w4_matvec by default, for the same bits: the teams beyond have nothing to multiply.
  task.shares = shares_of(items, matvec_blocks(items, num_teams) * kMatvecWarps);
  task.bfloat16_scales = p.scale_dtype == DType::kBFloat16;
  task.output = {p.out, p.residual,  p.out_row_stride, p.residual_row_stride,
                 p.n,   p.float_out, p.epilogue,       p.scale};
  return task;
}

inline NormTask task_of(const StreamNorm& p) {
  return {p.x,
          p.weight,
          static_cast<__half*>(p.out),
          p.x_row_stride,
          p.out_row_stride,
          p.d,
          rms_threads(p.d),
          p.eps};
}

inline DeltaTask task_of(const StreamGatedDelta& p) {
  return {rows_of(p.current),
          static_cast<const __half*>(p.pending_qkv),
          p.pending_updates,
          static_cast<const __half*>(p.z),
          static_cast<__half*>(p.out),
          p.updates,
          p.z_row_stride,
          p.out_row_stride,
          p.updates_row_stride,
          p.num_accepted,
          static_cast<const __half*>(p.conv_weight),
          p.a_log,
          p.dt_bias,
          p.norm_weight,
          static_cast<const __half*>(p.conv_window),
          p.state,
          static_cast<int>(gdn_updates_width(p.h, p.hv)),
          static_cast<int>(p.pending_rows),
          static_cast<int>(p.h),
          static_cast<int>(p.hv),
          static_cast<int>(p.hv / p.h),
          p.eps};
}

inline EmbeddingTask task_of(const StreamEmbedding& p) {
  return {
      p.ids, static_cast<const __half*>(p.table), p.out, p.table_row_stride, p.out_row_stride, p.n,
      p.d};
}

inline AttentionTask task_of(const StreamAttention& p) {
  AttentionDecodeParams decode = p.decode;
  decode.rows = kStreamMaxRows;  // of the workspace
  AttentionTask task = {attention_args_of(decode, 0), p.arrived, p.decode.cache_dtype};
  task.args.num_stages = kAttentionStages;
  return task;
}

// row_bytes: of each further row, of num_rows at most.
inline void add_early(EarlyReads& reads,
                      const void* p,
                      std::int64_t num_bytes,
                      std::int64_t row_bytes = 0,
                      std::int64_t num_rows = 1) {
  const auto whole = [](std::int64_t bytes) { return static_cast<int>(bytes / 16 * 16); };
  for (Early& early : reads.early) {
    if (early.num_bytes == 0) {
      const bool aligned = reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
      early = {p, aligned ? whole(num_bytes) : 0, whole(row_bytes), static_cast<int>(num_rows)};
      return;
    }
  }
}

// What each op reads besides packed weights and what it is handed.
inline EarlyReads early_of(const StreamOp& op) {
  const std::int64_t half = sizeof(__half);
  EarlyReads reads = {};
  switch (op.kind) {
    case StreamKind::kNorm:
      add_early(reads, op.norm.weight, op.norm.d * std::int64_t{sizeof(float)});
      break;
    case StreamKind::kGates:
      add_early(reads, op.gates.weight,
                ((op.gates.n - 1) * op.gates.weight_row_stride + op.gates.d) * half);
      break;
    case StreamKind::kReplay: {
      const StreamGatedDelta& d = op.delta;
      const std::int64_t channels = (2 * d.h + d.hv) * kGdnHeadDim;
      add_early(reads, d.state, d.hv * kGdnHeadDim * kGdnHeadDim * std::int64_t{sizeof(float)});
      add_early(reads, d.conv_weight, channels * kTaps * half);
      add_early(reads, d.conv_window, channels * kWindow * half);
      // As many rows wait as this pass has, most likely.
      const std::int64_t row = channels * half;
      const std::int64_t update = gdn_updates_width(d.h, d.hv) * std::int64_t{sizeof(float)};
      add_early(reads, d.pending_qkv, row, row, d.pending_rows);
      add_early(reads, d.pending_updates, update, update, d.pending_rows);
      add_early(reads, d.a_log, d.hv * std::int64_t{sizeof(float)});
      add_early(reads, d.dt_bias, d.hv * std::int64_t{sizeof(float)});
      add_early(reads, d.norm_weight, kGdnHeadDim * std::int64_t{sizeof(float)});
      break;
    }
    case StreamKind::kAttention: {
      const AttentionDecodeParams& p = op.attention.decode;
      const std::int64_t item = p.norm_dtype == DType::kFloat32 ? sizeof(float) : half;
      add_early(reads, p.q_norm, kHeadDim * item);
      add_early(reads, p.k_norm, kHeadDim * item);
      add_early(reads, p.inv_freq, p.rotary_dim / 2 * std::int64_t{sizeof(float)});
      break;
    }
    case StreamKind::kProduct:
    case StreamKind::kEmbedding:
    case StreamKind::kGatedDelta:  // the replay has read it
      break;
  }
  return reads;
}

// Where the parts of a table begin, in bytes.
struct TableLayout {
  std::size_t early;
  std::size_t weights;

  explicit TableLayout(int num_ops)
      : early(num_ops * sizeof(StreamTask)), weights(early + num_ops * sizeof(EarlyReads)) {}
};

// The bytes of the table; what a launch wants besides goes to *plan, whose device is set.
inline std::vector<unsigned char> make_table(const StreamOp* ops,
                                             int num_ops,
                                             int num_sms,
                                             StreamPlan* plan) {
  std::vector<unsigned char> bytes(weight_stream_table_bytes(num_ops));
  const TableLayout layout(num_ops);
  const auto put = [&](std::size_t begin, int i, const auto& record) {
    std::memcpy(bytes.data() + begin + i * sizeof record, &record, sizeof record);
  };
  plan->num_ops = num_ops;
  for (int i = 0; i < num_ops; ++i) {
    const StreamOp& op = ops[i];
    StreamTask task = {};
    task.kind = op.kind;
    switch (op.kind) {
      case StreamKind::kNorm:
        task.norm = task_of(op.norm);
        plan->max_d = std::max(plan->max_d, op.norm.d);
        break;
      case StreamKind::kGates:
        task.gates = task_of(op.gates);
        break;
      case StreamKind::kProduct:
        task.product = task_of(op.product, num_sms * kTeams);
        task.product.parity = plan->num_products % 2;
        plan->asymmetric = op.product.asymmetric;
        put(layout.weights, plan->num_products++,
            WeightsTask{task.product.p_weight, task.product.shares});
        break;
      case StreamKind::kReplay:
        task.delta = task_of(op.delta);
        break;
      case StreamKind::kGatedDelta:
        task.delta = task_of(op.delta);
        plan->has_delta = true;
        break;
      case StreamKind::kEmbedding:
        task.embedding = task_of(op.embedding);
        break;
      case StreamKind::kAttention:
        task.attention = task_of(op.attention);
        plan->has_attention = true;
        break;
    }
    put(0, i, task);
    put(layout.early, i, early_of(op));
  }
  return bytes;
}

}  // namespace bytebound
