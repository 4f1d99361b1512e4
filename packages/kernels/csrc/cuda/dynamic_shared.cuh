// The shared memory of a block that is as large as its launch asked for (LaunchOptions).
//
// A macro, since a function that returned its address would hide from the compiler where it lies.
#pragma once

// Declares an array of it in a kernel; an alignment stands before the type.
#define BYTEBOUND_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
