#pragma once

// Everything else in the library is hidden: another collective library may live in the same
// process.
#define TCCL_API __attribute__((visibility("default")))
