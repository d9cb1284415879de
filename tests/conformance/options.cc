#include "options.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace conformance {

namespace {

std::uint64_t number(const std::string& text) {
  std::size_t used = 0;
  const std::uint64_t value = std::stoull(text, &used);
  if (used != text.size()) throw std::invalid_argument("not a number: " + text);
  return value;
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

void set_ranks(Options& options, const std::string& text) {
  options.request.ranks = static_cast<int>(number(text));
  if (options.request.ranks < 1 || options.request.ranks > 64) {
    throw std::invalid_argument("--ranks must be between 1 and 64");
  }
}

void set_range(Options& options, const std::string& text) {
  const std::size_t colon = text.find(':');
  options.first = number(text.substr(0, colon));
  options.last = colon == std::string::npos ? options.first : number(text.substr(colon + 1));
}

void add_setting(Options& options, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) throw std::invalid_argument("--set needs NAME=VALUE");
  options.settings.emplace_back(text.substr(0, equals), text.substr(equals + 1));
}

void set_chunk(Options& options, const std::string& text) {
  options.request.chunk_bytes = number(text);
  options.settings.emplace_back("CCL_CHUNK_BYTES", text);
}

void set_eager(Options& options, const std::string& text) {
  options.request.eager_bytes = number(text);
  options.settings.emplace_back("CCL_EAGER_BYTES", text);
}

void set_layout(Options& options, const std::string& text) {
  options.host_of.clear();
  for (const std::string& host : split_at_commas(text))
    options.host_of.push_back(static_cast<int>(number(host)));
}

struct Row {
  std::string_view name;
  std::string_view argument;  // empty: a switch
  std::string_view help;
  void (*apply)(Options&, const std::string&);
};

constexpr std::array kRows = {
    Row{"--ranks", "P", "number of ranks", set_ranks},
    Row{"--cases", "N", "length of the list of cases",
        [](Options& o, const std::string& text) { o.request.cases = number(text); }},
    Row{"--seed", "S", "of the list and of the data",
        [](Options& o, const std::string& text) { o.request.seed = number(text); }},
    Row{"--ops", "A,B", "only these operations: allreduce, ..., barrier, p2p, p2p:ring",
        [](Options& o, const std::string& text) { o.request.operations = split_at_commas(text); }},
    Row{"--chunk-bytes", "B", "CCL_CHUNK_BYTES; counts vary around it", set_chunk},
    Row{"--eager-bytes", "B", "CCL_EAGER_BYTES; message sizes vary around it", set_eager},
    Row{"--limit-bytes", "B", "another size around which counts vary; may be repeated",
        [](Options& o, const std::string& text) { o.request.limit_bytes.push_back(number(text)); }},
    Row{"--large-one-in", "N", "one in N sizes is around a large limit",
        [](Options& o, const std::string& text) { o.request.large_one_in = number(text); }},
    Row{"--set", "NAME=VALUE", "any setting of the library; may be repeated", add_setting},
    Row{"--only", "I or I:J", "run only these cases of the list", set_range},
    Row{"--first-sequence", "N", "number of the first collective",
        [](Options& o, const std::string& text) {
          o.first_sequence = static_cast<std::uint32_t>(number(text));
        }},
    Row{"--watchdog", "SECONDS", "the run fails after this time without progress",
        [](Options& o, const std::string& text) { o.watchdog_s = static_cast<int>(number(text)); }},
    Row{"--list-algorithms", "", "print the table of algorithms: scope, operation, name",
        [](Options& o, const std::string&) { o.list_algorithms = true; }},
    Row{"--threads", "", "ranks are threads of one process",
        [](Options& o, const std::string&) { o.threads = true; }},
    Row{"--namespaces", "A,B", "hosts: files of network namespaces, such as /run/netns/a",
        [](Options& o, const std::string& text) { o.namespaces = split_at_commas(text); }},
    Row{"--host-of", "H,H", "which of the namespaces each rank is in, from 0", set_layout},
    Row{"--shared", "", "allocate buffers by Context::allocate: all in every other case, else some",
        [](Options& o, const std::string&) { o.shared = true; }},
};

const Row& row_named(std::string_view name) {
  const auto* row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  if (row == kRows.end()) throw std::invalid_argument("unknown option " + std::string(name));
  return *row;
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const Row& row = row_named(argv[i]);
    std::string text;
    if (!row.argument.empty()) {
      if (++i == argc) throw std::invalid_argument(std::string(row.name) + " needs an argument");
      text = argv[i];
    }
    row.apply(options, text);
  }
  const auto ranks = static_cast<std::size_t>(options.request.ranks);
  if (!options.host_of.empty() && (options.host_of.size() != ranks || options.threads))
    throw std::invalid_argument("--host-of names one host for each rank, which is a process");
  for (const int host : options.host_of)
    if (static_cast<std::size_t>(host) >= options.namespaces.size())
      throw std::invalid_argument("--host-of names a host that is not in --namespaces");
  return options;
}

std::string usage() {
  std::string text = "usage: conformance [options]\n";
  for (const Row& row : kRows) {
    std::string left = "  " + std::string(row.name) + " " + std::string(row.argument);
    left.resize(std::max<std::size_t>(left.size() + 1, 26), ' ');
    text += left + std::string(row.help) + "\n";
  }
  return text;
}

std::string command_for(const Options& options, std::uint64_t case_index) {
  const CaseRequest& request = options.request;
  std::ostringstream line;
  line << "conformance --ranks " << request.ranks << " --cases " << request.cases << " --seed "
       << request.seed;
  if (!request.operations.empty()) {
    line << " --ops ";
    for (const std::string& name : request.operations) {
      line << (&name == request.operations.data() ? "" : ",") << name;
    }
  }
  for (const auto& [name, value] : options.settings) {
    if (name == "CCL_CHUNK_BYTES") {
      line << " --chunk-bytes " << value;
    } else if (name == "CCL_EAGER_BYTES") {
      line << " --eager-bytes " << value;
    } else {
      line << " --set " << name << "=" << value;
    }
  }
  if (request.large_one_in != 0) line << " --large-one-in " << request.large_one_in;
  for (const std::size_t bytes : request.limit_bytes) line << " --limit-bytes " << bytes;
  if (options.first_sequence != 1) line << " --first-sequence " << options.first_sequence;
  if (options.threads) line << " --threads";
  if (options.shared) line << " --shared";
  const auto add_list = [&](const char* name, const auto& entries) {
    if (!entries.empty()) line << " " << name << " ";
    for (std::size_t i = 0; i < entries.size(); ++i) line << (i == 0 ? "" : ",") << entries[i];
  };
  add_list("--namespaces", options.namespaces);
  add_list("--host-of", options.host_of);
  line << " --only " << case_index;
  return line.str();
}

}  // namespace conformance
