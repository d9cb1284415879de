// Marks what libtccl.so exports. All other symbols are hidden, because the process may have loaded
// another collective library.
// Thread safety: a macro.
#pragma once

#define TCCL_API __attribute__((visibility("default")))
