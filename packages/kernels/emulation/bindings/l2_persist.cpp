// In place of csrc/bindings/l2_persist.cpp: the emulated card has no L2 cache to keep anything in.
#include "bind.h"

namespace bytebound {

void bind_l2_persist(pybind11::module_&) {}

}  // namespace bytebound
