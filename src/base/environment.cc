#include "base/environment.h"

#include <stdlib.h>
#include <unistd.h>

#include <list>
#include <mutex>
#include <string_view>
#include <vector>

namespace tccl {
namespace {

std::mutex environment_mutex;  // between calls of set_environment_variable()

/// An array of variables that was published.
struct Block {
  std::string added;  // "name=value"
  std::vector<char*> variables;
};

/// Never destroyed: other threads, and handlers at exit, may read any of them.
std::list<Block>& all_blocks() {
  static auto& blocks = *new std::list<Block>();
  return blocks;
}

}  // namespace

void set_environment_variable(const std::string& name, const std::string& value) {
  const std::string prefix = name + "=";
  const std::lock_guard lock(environment_mutex);
  if (const char* const present = ::getenv(name.c_str()); present != nullptr && value == present)
    return;
  Block& block = all_blocks().emplace_back();
  block.added = prefix + value;
  char** const old = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);  // pairs with the store below
  for (char** variable = old; variable != nullptr && *variable != nullptr; ++variable)
    if (!std::string_view(*variable).starts_with(prefix)) block.variables.push_back(*variable);
  block.variables.push_back(block.added.data());
  block.variables.push_back(nullptr);
  // Release: a reader that sees the new array sees what is in it. getenv() loads this pointer once.
  __atomic_store_n(&environ, block.variables.data(), __ATOMIC_RELEASE);
}

}  // namespace tccl
