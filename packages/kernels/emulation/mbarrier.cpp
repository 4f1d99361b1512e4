#include "mbarrier.h"

namespace emulation {
namespace {

struct State {
  std::uint32_t phase : 1;
  std::uint32_t num_pending : 15;   // arrivals to come
  std::uint32_t num_expected : 16;  // in each phase
  std::int32_t num_bytes;           // to come
};
static_assert(sizeof(State) == sizeof(std::uint64_t));

State state_of(std::uint64_t bits) {
  State state;
  std::memcpy(&state, &bits, sizeof state);
  return state;
}

// Other blocks of a cluster may change it at the same time.
template <typename Change>
void update(std::uint64_t* p, Change change) {
  std::uint64_t before = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  std::uint64_t after;
  do {
    State state = state_of(before);
    change(state);
    if (state.num_pending == 0 && state.num_bytes == 0) {
      state.phase ^= 1;
      state.num_pending = state.num_expected;
    }
    std::memcpy(&after, &state, sizeof after);
  } while (
      !__atomic_compare_exchange_n(p, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

void take_arrival(State& state) {
  if (state.num_pending == 0) {
    t_block->fail("more arrivals at an mbarrier than it was opened for");
  }
  --state.num_pending;
}

}  // namespace

void init_mbarrier(std::uint64_t* p, unsigned num_arrivals) {
  const State state = {0, num_arrivals & 0x7fff, num_arrivals & 0xffff, 0};
  std::memcpy(p, &state, sizeof state);
}

void arrive(std::uint64_t* p) {
  update(p, take_arrival);
}

void arrive_expecting(std::uint64_t* p, unsigned num_bytes) {
  update(p, [&](State& state) {
    state.num_bytes += static_cast<std::int32_t>(num_bytes);
    take_arrival(state);
  });
}

void complete_bytes(std::uint64_t* p, unsigned num_bytes) {
  update(p, [&](State& state) { state.num_bytes -= static_cast<std::int32_t>(num_bytes); });
}

bool is_phase_complete(const std::uint64_t* p, unsigned parity) {
  return state_of(__atomic_load_n(p, __ATOMIC_SEQ_CST)).phase != (parity & 1);
}

}  // namespace emulation
