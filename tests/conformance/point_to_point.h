// Point-to-point cases: patterns of tagged sends and receives, with a check of every message.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cases.h"
#include "collective_run.h"

namespace conformance {

/// Runs the case's pattern. Returns the first problem, if any.
std::optional<std::string> run_pattern(std::uint64_t seed, const Case& one, const Group& group);

}  // namespace conformance
