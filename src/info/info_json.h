// The C functions of libtccl: what tccl/info.h offers, as JSON. Programs that do not link against
// C++ (the command torch-ccl loads libtccl.so by dlopen) call them.
//
//   tccl_settings_json()        {"settings": [{"name", "value", "doc", "is_set"}],
//                                "other_variables": [{"name", "default", "doc", "is_ignored"}]}
//   tccl_info_json()            {"kernels", "algorithms": [...], "settings": [...]}
//   tccl_host_addresses_json()  {"addresses": [text]}
//
// A function that fails returns {"error": text}.
//
// Thread safety: call from any thread. A result is valid until the next call from the same thread.
#pragma once

#include "tccl/export.h"

extern "C" {
/// Reports values as written in the environment. Does not parse them, so it cannot fail.
TCCL_API const char* tccl_settings_json();
/// Fails if a setting has an invalid value.
TCCL_API const char* tccl_info_json();
/// Fails if no network interface is usable or CCL_SOCKET_IFNAME matches none.
TCCL_API const char* tccl_host_addresses_json();
}
