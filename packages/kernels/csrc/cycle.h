// What one speculative cycle leaves on the device: an int32 array of kCycleHeader + R words.
//
//   word  0         1           2             3            4              5-7     8 .. 8+R-1
//         position  next token  num accepted  num emitted  total emitted  unused  emitted ids, then
//         -1
//
// A decode loop points its kernels at the words it needs, so that no number has to come to the host
// before the next cycle starts. bytebound_kernels/ops/speculative_accept/op.py repeats the numbers.
#pragma once

namespace bytebound {

constexpr int kCyclePosition = 0;      // of the token that the next cycle's row 0 chooses
constexpr int kCycleNextToken = 1;     // the last emitted id: the next cycle's first input
constexpr int kCycleNumAccepted = 2;   // j: how many drafts stood
constexpr int kCycleNumEmitted = 3;    // j + 1
constexpr int kCycleTotalEmitted = 4;  // over all cycles, modulo 2^31
constexpr int kCycleHeader = 8;

constexpr int kMaxCycleRows = 32;  // one lane of a warp for each

}  // namespace bytebound
