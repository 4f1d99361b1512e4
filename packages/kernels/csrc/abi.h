// The number that a caller compares before it uses this build's native functions.
#pragma once

namespace bytebound {

// Goes up when a native function changes its arguments or a packed layout changes its bytes.
constexpr int kAbiVersion = 1;

}  // namespace bytebound
