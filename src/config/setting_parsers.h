// Parsers of the table of settings: each turns the text of a variable into a field of Settings and
// throws Error{invalid_argument} for a text that it does not accept. Several rows fill the interface
// preference and the list of algorithms: their parsers add nothing for an empty text.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "config/settings.h"
#include "tccl/operation.h"

namespace tccl {

/// "64", "64K", "1M", "2G"
std::size_t parse_bytes(std::string_view text);
/// The same, from 16 bytes (the largest element) to 16 MiB.
std::size_t parse_chunk_bytes(std::string_view text);

template <auto Field>
void bytes_into(Settings& settings, const std::string& text) {
  settings.*Field = parse_chunk_bytes(text);
}

template <auto Field>
void text_into(Settings& settings, const std::string& text) {
  settings.*Field = text;
}

void log_level_into(Settings& settings, const std::string& text);
void shared_bytes_into(Settings& settings, const std::string& text);
void worker_count_into(Settings& settings, const std::string& text);
void worker_offload_into(Settings& settings, const std::string& text);
void worker_affinity_into(Settings& settings, const std::string& text);
void transport_into(Settings& settings, const std::string& text);
void provider_into(Settings& settings, const std::string& text);
void interface_filter_into(Settings& settings, const std::string& text);
/// The first row that is set wins. A text that cannot be parsed counts as not set.
void interface_preference_into(Settings& settings, const std::string& text);
void ports_into(Settings& settings, const std::string& text);
void liveness_into(Settings& settings, const std::string& text);
void wire_format_into(Settings& settings, const std::string& text);

/// "CCL_ALLREDUCE"
std::string algorithm_variable(Op op);
void add_algorithm(Settings& settings, AlgorithmSetting setting);

template <Op O>
void algorithm_into(Settings& settings, const std::string& text) {
  add_algorithm(settings, {O, algorithm_variable(O), text});
}

/// CCL_<OPERATION>_SCALEOUT
template <Op O>
void algorithm_over_hosts_into(Settings& settings, const std::string& text) {
  add_algorithm(settings, {O, algorithm_variable(O) + "_SCALEOUT", text, /*over_hosts=*/true});
}

void bcast_algorithm_into(Settings& settings, const std::string& text);

}  // namespace tccl
