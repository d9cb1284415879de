// Tagged send and recv: the patterns of traffic and the check of every message. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cases.h"
#include "collective_run.h"

namespace conformance {

/// Runs the case's pattern to its end. Says what is wrong, if anything.
std::optional<std::string> run_pattern(std::uint64_t seed, const Case& one, const Group& group);

}  // namespace conformance
