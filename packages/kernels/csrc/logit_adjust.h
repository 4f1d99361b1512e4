// Bias, penalties and masks on rows of logits. Pointers, sizes, strides and a stream: no framework.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

// The float64 words of LogitAdjustParams::settings.
constexpr int kAdjustRepetition = 0;  // penalty over prompt and completion, above 0; 1: none
constexpr int kAdjustPresence = 1;    // subtracted once; 0: none
constexpr int kAdjustFrequency = 2;   // subtracted per occurrence; 0: none
constexpr int kAdjustMinTokens = 3;   // end ids are masked until so many ids were generated

// Sorted lists are not needed. An id outside 0 .. N-1 is skipped, so a list may be padded with -1.
struct LogitAdjustParams {
  const float* logits;            // [R, N], row_stride elements from row to row
  float* out;                     // [R, N], out_row_stride elements apart; may be logits itself
  const double* settings;         // [4]
  const std::uint8_t* seen;       // [N]: 1 for ids of prompt and completion; null: none
  const std::int32_t* counts;     // [N]: occurrences in the completion; null: none
  const std::int32_t* generated;  // [1]: ids of the completion so far; null: 0
  const std::int32_t* drafts;     // [R - 1]: row r sees drafts[0 .. r-1] as history too; null: none
  const std::int32_t* bias_ids;   // [num_bias], distinct
  const float* bias_values;       // [num_bias]
  const std::int32_t* banned_ids;  // [num_banned]
  const std::int32_t* end_ids;     // [num_end]
  std::int64_t rows;               // R, 0 to 32
  std::int64_t n;                  // N, 1 to 2^30
  std::int64_t row_stride;         // in elements
  std::int64_t out_row_stride;     // in elements
  std::int64_t num_bias;
  std::int64_t num_banned;
  std::int64_t num_end;
  bool allow_minus_infinity;  // in logits, as for ids that a draft cannot propose
  int device;                 // the device that owns the pointers
};

// In this order: bias in float32; repetition, presence and frequency penalty in float64, bounded to
// +-1e30 and rounded to float32; -infinity for banned ids, and for end ids while
// generated + r < min_tokens. A logit that is not finite becomes NaN and stays NaN under a mask.
//
// Enqueues one kernel on `stream` and returns: no allocation, no synchronisation, legal under
// stream capture.
Status logit_adjust(const LogitAdjustParams& params, void* stream);

}  // namespace bytebound
