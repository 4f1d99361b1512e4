// The weight stream: one block for each multiprocessor walks the ops of several layers.
//
//   warp      ring of its own weights, always full   (cuda/weight_ring.cuh)
//   norm      every block, into its shared memory    (cuda/stream_norm.cuh)
//   product   as w4_matvec, block = team             (cuda/stream_product.cuh)
//   delta     as gdn_step, cluster = team            (cuda/stream_delta.cuh)
//
// Between ops there is no barrier of the grid: results carry their own flag (cuda/handed.cuh).
#include "weight_stream.h"

#include <algorithm>

#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/dynamic_shared.cuh"
#include "cuda/launch.h"
#include "cuda/special_registers.cuh"
#include "cuda/stream_delta.cuh"
#include "cuda/stream_gates.cuh"
#include "cuda/stream_norm.cuh"
#include "cuda/stream_product.cuh"
#include "cuda/stream_program.cuh"
#include "cuda/weight_ring.cuh"

namespace bytebound {
namespace {

constexpr int kStamps = 4;
constexpr int kNormedPad = 8;  // halves between rows: other banks for each

__device__ __forceinline__ void stamp(const StreamProgram& program, int i_op, int i_stamp) {
  if (program.p_clock != nullptr && threadIdx.x == 0) {
    program.p_clock[(i_op * kStamps + i_stamp) * gridDim.x + blockIdx.x] = global_time();
  }
}

// Where a thread finds what is its warp's or its team's in shared memory.
template <bool kAsymmetric>
struct Place {
  const StreamProgram& program;
  unsigned char* p_shared;
  int i_thread;

  __device__ __forceinline__ int lane() const { return i_thread % kWarp; }
  __device__ __forceinline__ int warp() const { return i_thread / kWarp; }
  __device__ __forceinline__ std::uint64_t* barriers() const {
    return reinterpret_cast<std::uint64_t*>(p_shared + program.barriers);
  }
  __device__ __forceinline__ RingPlace ring() const {
    constexpr int kSlotBytes = WeightRing<kAsymmetric>::kSlotBytes;
    std::uint64_t* p_full = barriers() + 2 * kTeams;
    return {p_shared + warp() * program.num_slots * kSlotBytes, p_full + warp() * kMostSlots,
            reinterpret_cast<RingCursor*>(p_full + kStreamWarps * kMostSlots) + warp(),
            static_cast<int>(blockIdx.x) * kStreamWarps + warp(), lane()};
  }
  __device__ __forceinline__ Team team() const {
    const int index = warp() / kMatvecWarps;
    std::uint64_t* p_ready = barriers() + 2 * index;
    return {index,
            static_cast<int>(blockIdx.x) * kTeams + index,
            warp() % kMatvecWarps,
            i_thread % kTeamThreads,
            lane(),
            p_ready,
            p_ready + 1};
  }
  __device__ __forceinline__ __half* normed() const {
    return reinterpret_cast<__half*>(p_shared + program.normed);
  }
  __device__ __forceinline__ float* squares() const {
    return reinterpret_cast<float*>(p_shared + program.squares);
  }
  __device__ __forceinline__ void* parts() const {
    return p_shared + program.parts[warp() / kMatvecWarps];
  }
};

// As w4_matvec, a number of rows has a kernel of its own, and a row the same bits in each.
template <bool kAsymmetric, int kNumRows>
__global__ void __launch_bounds__(kStreamThreads, 1)
    weight_stream_kernel(const __grid_constant__ StreamProgram program) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  BYTEBOUND_DYNAMIC_SHARED(__align__(128) unsigned char, shared_bytes);
  {
    const Place<kAsymmetric> place{program, shared_bytes, thread_index()};
    if (place.i_thread == 0) {
#pragma unroll 1
      for (int i = 0; i < 2 * kTeams; ++i) {
        open_barrier(place.barriers() + i, kMatvecWarps);
      }
    }
    if (place.warp() == 0) {
#pragma unroll 1
      for (int i = 0; i < min(kOpsAhead, program.num_ops); ++i) {
        ask_early(program.ops[i], place.lane());
      }
    }
    WeightRing<kAsymmetric>::open(program, place.ring());
  }
  __syncthreads();
  allow_next_kernel();
  wait_for_previous_kernel();

#pragma unroll 1
  for (int i_op = 0; i_op < program.num_ops; ++i_op) {
    const StreamTask& op = program.ops[i_op];
    const Place<kAsymmetric> place{program, shared_bytes, thread_index()};
    stamp(program, i_op, 0);
    if (place.warp() == kStreamWarps - 1 && i_op + kOpsAhead < program.num_ops) {
      ask_early(program.ops[i_op + kOpsAhead], place.lane());
    }
    switch (op.kind) {
      case StreamKind::kNorm:
        stream_norm(op.norm, program.num_rows, program.normed_stride, place.normed(),
                    place.squares(), place.i_thread);
        break;
      case StreamKind::kGates:
        stream_gates(op.gates, program.num_rows, place.normed(), program.normed_stride,
                     place.i_thread);
        break;
      case StreamKind::kProduct: {
        const int sent_slot = gridDim.x * kTeams * (kItemRows / 2) * kMatvecRows;
        float2* p_sent = program.p_sent + (i_op % kStreamSentSlots) * sent_slot;
        stream_product<kAsymmetric, kNumRows>(program, op.product, place.ring(), place.team(),
                                              place.normed(), static_cast<float2*>(place.parts()),
                                              p_sent, [&](int i) { stamp(program, i_op, i); });
        break;
      }
      case StreamKind::kReplay:
      case StreamKind::kGatedDelta: {
        const Team team = place.team();
        for_heads(op.delta, team, [&](int i_head) {
          if (op.kind == StreamKind::kReplay) {
            stream_replay_head(op.delta, i_head, team);
          } else {
            stream_delta_head(op.delta, i_head, program.num_rows, team,
                              static_cast<float*>(place.parts()));
          }
        });
        break;
      }
    }
    stamp(program, i_op, 3);
  }
#endif
}

struct SharedPlan {
  int bytes;
  int normed;
  int squares;
  int parts[kTeams];
  int barriers;
};

int slot_bytes(bool asymmetric) {
  return asymmetric ? WeightRing<true>::kSlotBytes : WeightRing<false>::kSlotBytes;
}

int round_up(int value, int unit) {
  return (value + unit - 1) / unit * unit;
}

// max_d: of the norms; 0 without. delta_rows: of this pass, with a delta op or a replay; else 0.
SharedPlan plan_shared(int num_slots, int rows, int max_d, int delta_rows, bool asymmetric) {
  SharedPlan plan;
  plan.normed = num_slots * kStreamWarps * slot_bytes(asymmetric);
  plan.squares = plan.normed + round_up(rows * (max_d + kNormedPad) * 2, 16);
  plan.parts[0] = plan.squares + rows * kWarp * 4;
  const int parts = 2 * kMatvecWarps * (kItemRows / 2) * rows * static_cast<int>(sizeof(float2));
  plan.parts[1] = plan.parts[0] + parts;
  plan.barriers =
      plan.parts[1] + round_up(std::max(parts, delta_shared_floats(delta_rows) * 4), 16);
  plan.bytes = plan.barriers + (2 * kTeams + kStreamWarps * kMostSlots) * 8 +
               kStreamWarps * static_cast<int>(sizeof(RingCursor));
  return plan;
}

// The deepest ring that fits beside the rest; 0 where none does.
int most_slots(int rows, int max_d, int delta_rows, bool asymmetric, int device) {
  int limit = 0;
  if (cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
      cudaSuccess) {
    return 0;
  }
  int slots = kMostSlots;
  while (slots > 0 && plan_shared(slots, rows, max_d, delta_rows, asymmetric).bytes > limit) {
    --slots;
  }
  return slots;
}

DeltaRows rows_of(const GdnRows& rows) {
  return {static_cast<const __half*>(rows.qkv),
          static_cast<const __half*>(rows.a),
          static_cast<const __half*>(rows.b),
          rows.qkv_row_stride,
          rows.a_row_stride,
          rows.b_row_stride};
}

Shares shares_of(std::int64_t items, std::int64_t warps) {
  const std::int64_t busy = std::min(items, warps);
  return {static_cast<int>(items), static_cast<int>(items / busy),
          static_cast<unsigned>((items % busy << 32) / busy), static_cast<int>(busy)};
}

GatesTask task_of(const StreamGates& p) {
  return {static_cast<const __half*>(p.weight),
          static_cast<__half*>(p.out),
          p.weight_row_stride,
          p.out_row_stride,
          p.n,
          p.d,
          rms_threads(p.d)};
}

ProductTask task_of(const StreamProduct& p, int num_teams) {
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

NormTask task_of(const StreamNorm& p) {
  return {p.x,
          p.weight,
          static_cast<__half*>(p.out),
          p.x_row_stride,
          p.out_row_stride,
          p.d,
          rms_threads(p.d),
          p.eps};
}

DeltaTask task_of(const StreamGatedDelta& p) {
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

void add_early(StreamTask& task, const void* p, std::int64_t num_bytes) {
  for (Early& early : task.early) {
    if (early.num_bytes == 0) {
      const bool aligned = reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
      early = {p, aligned ? static_cast<int>(num_bytes / 16 * 16) : 0};
      return;
    }
  }
}

// What each op reads besides packed weights and what it is handed.
void add_early(StreamTask& task, const StreamOp& op, int rows) {
  const std::int64_t half = sizeof(__half);
  switch (op.kind) {
    case StreamKind::kNorm:
      add_early(task, op.norm.weight, op.norm.d * std::int64_t{sizeof(float)});
      break;
    case StreamKind::kProduct:
      break;
    case StreamKind::kGates:
      add_early(task, op.gates.weight,
                ((op.gates.n - 1) * op.gates.weight_row_stride + op.gates.d) * half);
      break;
    case StreamKind::kGatedDelta:
      break;  // the replay has read it
    case StreamKind::kReplay: {
      const StreamGatedDelta& d = op.delta;
      const std::int64_t channels = (2 * d.h + d.hv) * kGdnHeadDim;
      add_early(task, d.state, d.hv * kGdnHeadDim * kGdnHeadDim * std::int64_t{sizeof(float)});
      add_early(task, d.conv_weight, channels * kTaps * half);
      add_early(task, d.conv_window, channels * kWindow * half);
      // As many rows wait as this pass has, most likely.
      const std::int64_t pending = std::min<std::int64_t>(rows, d.pending_rows);
      const std::int64_t width = gdn_updates_width(d.h, d.hv);
      add_early(task, d.pending_qkv, pending * channels * half);
      add_early(task, d.pending_updates, pending * width * std::int64_t{sizeof(float)});
      add_early(task, d.a_log, d.hv * std::int64_t{sizeof(float)});
      add_early(task, d.dt_bias, d.hv * std::int64_t{sizeof(float)});
      add_early(task, d.norm_weight, kGdnHeadDim * std::int64_t{sizeof(float)});
      break;
    }
  }
}

int num_sms_of(int device) {
  int count = 0;
  return cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess
             ? count
             : 0;
}

// By the kernel of that many rows, which kNumRows counts down to.
template <bool kAsymmetric, int kNumRows = kStreamMaxRows>
Status launch_rows(const LaunchOptions& options,
                   const StreamProgram& program,
                   int num_sms,
                   void* stream) {
  if (program.num_rows < kNumRows) {
    return launch_rows<kAsymmetric, (kNumRows > 1 ? kNumRows - 1 : 1)>(options, program, num_sms,
                                                                       stream);
  }
  return launch_with(options, weight_stream_kernel<kAsymmetric, kNumRows>, dim3(num_sms),
                     dim3(kStreamThreads), stream, program);
}

template <bool kAsymmetric>
Status run(const WeightStreamParams& params, int num_sms, void* stream) {
  StreamProgram program = {};
  program.num_ops = params.num_ops;
  program.num_rows = params.rows;
  program.p_sent = static_cast<float2*>(params.workspace);
  program.p_clock = params.clock;
  int max_d = 0;
  int delta_rows = 0;
  unsigned num_products = 0;
  for (int i = 0; i < params.num_ops; ++i) {
    const StreamOp& op = params.ops[i];
    StreamTask& task = program.ops[i];
    task.kind = op.kind;
    add_early(task, op, params.rows);
    switch (op.kind) {
      case StreamKind::kNorm:
        task.norm = task_of(op.norm);
        max_d = std::max(max_d, op.norm.d);
        break;
      case StreamKind::kGates:
        task.gates = task_of(op.gates);
        break;
      case StreamKind::kProduct:
        task.product = task_of(op.product, num_sms * kTeams);
        task.product.parity = num_products++ % 2;
        break;
      case StreamKind::kReplay:
      case StreamKind::kGatedDelta:
        task.delta = task_of(op.delta);
        delta_rows = params.rows;
        break;
    }
  }
  program.num_slots = most_slots(params.rows, max_d, delta_rows, kAsymmetric, params.device);
  if (program.num_slots == 0) {
    return kSizeOutOfRange;
  }
  const SharedPlan plan =
      plan_shared(program.num_slots, params.rows, max_d, delta_rows, kAsymmetric);
  program.normed_stride = max_d + kNormedPad;
  program.normed = plan.normed;
  program.squares = plan.squares;
  program.parts[0] = plan.parts[0];
  program.parts[1] = plan.parts[1];
  program.barriers = plan.barriers;
  LaunchOptions options;
  options.overlap_previous = true;
  options.shared_bytes = static_cast<std::size_t>(plan.bytes);
  return launch_rows<kAsymmetric>(options, program, num_sms, stream);
}

bool is_sound(const StreamOp& op, int rows) {
  switch (op.kind) {
    case StreamKind::kNorm:
      return op.norm.d >= kGroup && op.norm.d % kGroup == 0 && op.norm.d <= kNormMaxD;
    case StreamKind::kGates:
      return op.gates.n >= 1 && op.gates.d % kGroup == 0 && op.gates.d <= kNormMaxD;
    case StreamKind::kProduct:
      return op.product.n >= 1 && op.product.k >= kGroup && op.product.k % kGroup == 0;
    case StreamKind::kReplay:
    case StreamKind::kGatedDelta:
      return op.delta.h >= 1 && op.delta.hv % op.delta.h == 0 && op.delta.current.rows == rows &&
             op.delta.pending_rows >= 0 && op.delta.pending_rows <= kGdnMaxRows;
  }
  return false;
}

}  // namespace

int weight_stream_slots(int rows, int max_d, bool asymmetric, int device) {
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      major < 9) {
    return 0;
  }
  return most_slots(rows, max_d, static_cast<int>(kGdnMaxRows), asymmetric, device);
}

Status weight_stream(const WeightStreamParams& params, void* stream) {
  if (params.num_ops < 1 || params.num_ops > kStreamMaxOps || params.rows < 1 ||
      params.rows > kStreamMaxRows) {
    return kSizeOutOfRange;
  }
  bool asymmetric = false;
  bool symmetric = false;
  for (int i = 0; i < params.num_ops; ++i) {
    const StreamOp& op = params.ops[i];
    if (!is_sound(op, params.rows)) {
      return kSizeOutOfRange;
    }
    if (op.kind == StreamKind::kProduct) {
      (op.product.asymmetric ? asymmetric : symmetric) = true;
    }
  }
  if (asymmetric && symmetric) {
    return kNotInstantiated;
  }
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  if (device_major() < 9) {
    return kNotInstantiated;
  }
  const int num_sms = num_sms_of(params.device);
  return asymmetric ? run<true>(params, num_sms, stream) : run<false>(params, num_sms, stream);
}

}  // namespace bytebound
