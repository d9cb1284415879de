// What other files use of the operators.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>

namespace standin {

/// Gives a storage of the device other memory, to which the current stream copies the contents.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace standin
