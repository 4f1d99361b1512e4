// The weight stream: one block for each multiprocessor walks the ops of a whole pass.
//
//   warp       ring of its own weights, always full     (cuda/weight_ring.cuh)
//   norm       every block, into its shared memory      (cuda/stream_norm.cuh)
//   product    as w4_matvec, block = team               (cuda/stream_product.cuh)
//   delta      as gdn_step, cluster = team              (cuda/stream_delta.cuh)
//   attention  as attention_decode, block = four warps  (cuda/stream_attention.cuh)
//
// Between ops there is no barrier of the grid: results carry their own flag (cuda/handed.cuh).
#include "weight_stream.h"

#include <algorithm>

#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/dynamic_shared.cuh"
#include "cuda/launch.h"
#include "cuda/special_registers.cuh"
#include "cuda/stream_attention.cuh"
#include "cuda/stream_delta.cuh"
#include "cuda/stream_embedding.cuh"
#include "cuda/stream_gates.cuh"
#include "cuda/stream_norm.cuh"
#include "cuda/stream_product.cuh"
#include "cuda/stream_program.cuh"
#include "cuda/stream_table.cuh"
#include "cuda/weight_ring.cuh"

namespace bytebound {
namespace {

constexpr int kStamps = 4;
constexpr int kNormedPad = 8;  // halves between rows: other banks for each

__device__ __forceinline__ void stamp(const StreamProgram& program, int i_op, int i_stamp) {
  if (program.p_clock != nullptr && thread_index() == 0) {
    program.p_clock[(i_op * kStamps + i_stamp) * num_blocks() + block_index()] = global_time();
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
    return {p_shared + program.ring + warp() * program.num_slots * kSlotBytes,
            p_full + warp() * kMostSlots, cursor(), block_index() * kStreamWarps + warp(), lane()};
  }
  __device__ __forceinline__ RingCursor* cursor() const {
    return reinterpret_cast<RingCursor*>(p_shared + program.cursors) + warp();
  }
  // The op that the warp is at, read again each time: a register for it would be one too many.
  __device__ __forceinline__ int i_op() const {
    return *static_cast<const volatile int*>(&cursor()->i_op);
  }
  __device__ __forceinline__ void next_op() const {
    const int i_next = i_op() + 1;
    __syncwarp();
    if (lane() == 0) {
      cursor()->i_op = i_next;
    }
    __syncwarp();
  }
  __device__ __forceinline__ Team team() const {
    const int index = warp() / kMatvecWarps;
    std::uint64_t* p_ready = barriers() + 2 * index;
    return {index,
            block_index() * kTeams + index,
            warp() % kMatvecWarps,
            i_thread % kTeamThreads,
            lane(),
            p_ready,
            p_ready + 1};
  }
  // The record of an op, in the warp's own copy.
  __device__ __forceinline__ StreamTask* task(int i_op) const {
    return reinterpret_cast<StreamTask*>(p_shared + program.tasks) + 2 * warp() + i_op % 2;
  }
  // Of the warp that asks ahead.
  __device__ __forceinline__ EarlyReads* early() const {
    return reinterpret_cast<EarlyReads*>(p_shared + program.tasks +
                                         2 * kStreamWarps * sizeof(StreamTask));
  }
  __device__ __forceinline__ __half* normed() const { return reinterpret_cast<__half*>(p_shared); }
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
    begin_copy_record(place.task(0), program.p_tasks, place.lane());
    if (place.warp() == kStreamWarps - 1) {
#pragma unroll 1
      for (int i = 0; i < min(kOpsAhead, program.num_ops); ++i) {
        ask_early(program.p_early[i], program.num_rows, place.lane());
      }
      if (kOpsAhead < program.num_ops) {
        begin_copy_record(place.early(), program.p_early + kOpsAhead, place.lane());
      }
    }
    WeightRing<kAsymmetric>::open(program, place.ring());
  }
  __syncthreads();
  allow_next_kernel();
  wait_for_previous_kernel();

#pragma unroll 1
  while (true) {
    const Place<kAsymmetric> place{program, shared_bytes, thread_index()};
    const int i_op = place.i_op();
    if (i_op >= program.num_ops) {
      return;
    }
    stamp(program, i_op, 0);
    async_copy_wait();
    __syncwarp();  // the record is here, and no lane reads the one before any more
    StreamTask& op = *place.task(i_op);
    if (place.warp() == kStreamWarps - 1 && i_op + kOpsAhead < program.num_ops) {
      ask_early(*place.early(), program.num_rows, place.lane());
      __syncwarp();
      if (i_op + kOpsAhead + 1 < program.num_ops) {
        begin_copy_record(place.early(), program.p_early + i_op + kOpsAhead + 1, place.lane());
      }
    }
    if (i_op + 1 < program.num_ops) {
      begin_copy_record(place.task(i_op + 1), program.p_tasks + i_op + 1, place.lane());
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
        const int sent_slot = num_blocks() * kTeams * (kItemRows / 2) * kMatvecRows;
        float2* p_sent = program.p_sent + (i_op % kStreamSentSlots) * sent_slot;
        stream_product<kAsymmetric, kNumRows>(program, op.product, place.ring(), place.team(),
                                              place.normed(), static_cast<float2*>(place.parts()),
                                              p_sent,
                                              [&](int i) { stamp(program, place.i_op(), i); });
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
                              reinterpret_cast<float*>(shared_bytes + program.parts[kTeams - 1]));
          }
        });
        break;
      }
      case StreamKind::kEmbedding:
        stream_embedding(op.embedding, program.num_rows, place.i_thread);
        break;
      case StreamKind::kAttention:
        stream_attention<kNumRows>(program, op.attention,
                                   *reinterpret_cast<AttentionMemory*>(shared_bytes));
        break;
    }
    const Place<kAsymmetric> behind{program, shared_bytes, thread_index()};
    stamp(program, behind.i_op(), 3);
    behind.next_op();
  }
#endif
}

// Offsets in shared memory. The normed rows begin at 0, and attention lies over them and the parts.
struct SharedPlan {
  int bytes;
  int squares;
  int parts[kTeams];
  int ring;
  int barriers;
  int cursors;
  int tasks;
};

int round_up(int value, int unit) {
  return (value + unit - 1) / unit * unit;
}

SharedPlan plan_shared(const StreamPlan& program, int rows, int num_slots, int attention_groups) {
  const int slot_bytes =
      program.asymmetric ? WeightRing<true>::kSlotBytes : WeightRing<false>::kSlotBytes;
  const int parts = 2 * kMatvecWarps * (kItemRows / 2) * rows * static_cast<int>(sizeof(float2));
  const int delta_rows = program.has_delta ? rows : 0;
  SharedPlan plan;
  plan.squares = round_up(rows * (program.max_d + kNormedPad) * 2, 16);
  plan.parts[0] = plan.squares + rows * kWarp * 4;
  plan.parts[1] = plan.parts[0] + parts;
  const int end = plan.parts[1] + std::max(parts, delta_shared_floats(delta_rows) * 4);
  plan.ring = round_up(std::max(end, AttentionMemory::bytes(attention_groups)), 128);
  plan.tasks = plan.ring + num_slots * kStreamWarps * slot_bytes;
  plan.cursors =
      plan.tasks + static_cast<int>(2 * kStreamWarps * sizeof(StreamTask) + sizeof(EarlyReads));
  plan.barriers = plan.cursors + static_cast<int>(kStreamWarps * sizeof(RingCursor));
  plan.bytes = plan.barriers + (2 * kTeams + kStreamWarps * kMostSlots) * 8;
  return plan;
}

// A ring as deep as fits beside the rest, and then as many groups of attention as fit beside that.
struct Division {
  int num_slots = 0;  // 0: there is no room
  int attention_groups = 0;
  SharedPlan shared = {};

  Division(const StreamPlan& program, int rows) {
    int limit = 0;
    if (cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, program.device) !=
        cudaSuccess) {
      return;
    }
    const int fewest = program.has_attention ? 1 : 0;
    num_slots = kMostSlots;
    while (num_slots > 0 && plan_shared(program, rows, num_slots, fewest).bytes > limit) {
      --num_slots;
    }
    attention_groups = program.has_attention ? kMostAttentionGroups : 0;
    while (attention_groups > fewest &&
           plan_shared(program, rows, num_slots, attention_groups).bytes > limit) {
      --attention_groups;
    }
    shared = plan_shared(program, rows, num_slots, attention_groups);
  }
};

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

}  // namespace

int weight_stream_slots(const StreamPlan& plan, int rows) {
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, plan.device) !=
          cudaSuccess ||
      major < 9) {
    return 0;
  }
  return Division(plan, rows).num_slots;
}

Status weight_stream_plan(
    const StreamOp* ops, int num_ops, int device, void* table, void* stream, StreamPlan* plan) {
  if (num_ops < 1 || num_ops > kStreamMaxOps || !std::all_of(ops, ops + num_ops, is_sound)) {
    return kSizeOutOfRange;
  }
  const auto is_product = [](bool asymmetric) {
    return [=](const StreamOp& op) {
      return op.kind == StreamKind::kProduct && op.product.asymmetric == asymmetric;
    };
  };
  if (std::any_of(ops, ops + num_ops, is_product(true)) &&
      std::any_of(ops, ops + num_ops, is_product(false))) {
    return kNotInstantiated;
  }
  const DeviceGuard guard(device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  *plan = {};
  plan->device = device;
  const std::vector<unsigned char> bytes = make_table(ops, num_ops, num_sms_of(device), plan);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  cudaError_t error =
      cudaMemcpyAsync(table, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, cuda_stream);
  if (error == cudaSuccess) {
    error = cudaStreamSynchronize(cuda_stream);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // reported here, so it must not surface again
  }
  return error;
}

Status weight_stream(const WeightStreamParams& params, void* stream) {
  const StreamPlan& plan = params.plan;
  if (plan.num_ops < 1 || params.rows < 1 || params.rows > kStreamMaxRows) {
    return kSizeOutOfRange;
  }
  const DeviceGuard guard(plan.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  if (device_major() < 9) {
    return kNotInstantiated;
  }
  const Division division(plan, params.rows);
  if (division.num_slots == 0) {
    return kSizeOutOfRange;
  }
  const auto* p_table = static_cast<const unsigned char*>(params.table);
  const TableLayout layout(plan.num_ops);
  const SharedPlan& shared = division.shared;
  const StreamProgram program = {reinterpret_cast<const StreamTask*>(p_table),
                                 reinterpret_cast<const EarlyReads*>(p_table + layout.early),
                                 reinterpret_cast<const WeightsTask*>(p_table + layout.weights),
                                 plan.num_ops,
                                 plan.num_products,
                                 params.rows,
                                 division.num_slots,
                                 division.attention_groups,
                                 plan.max_d + kNormedPad,
                                 shared.squares,
                                 {shared.parts[0], shared.parts[1]},
                                 shared.ring,
                                 shared.barriers,
                                 shared.cursors,
                                 shared.tasks,
                                 static_cast<float2*>(params.workspace),
                                 params.clock};
  LaunchOptions options;
  options.overlap_previous = true;
  options.shared_bytes = static_cast<std::size_t>(shared.bytes);
  const int num_sms = num_sms_of(plan.device);
  return plan.asymmetric ? launch_rows<true>(options, program, num_sms, stream)
                         : launch_rows<false>(options, program, num_sms, stream);
}

}  // namespace bytebound
