#include "config/interface_filter.h"

#include <net/if.h>

#include <algorithm>
#include <cctype>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

/// The kernel forbids '/', ':' and white space in interface names; '^' only begins an exclusion.
bool may_be_in_name(char c) {
  return std::isgraph(static_cast<unsigned char>(c)) != 0 && c != '/' && c != ':' && c != '^';
}

void check_name(std::string_view name) {
  if (name.empty())
    throw Error(Errc::invalid_argument, "an interface name is empty; write eth,ib or ^lo,docker");
  if (!std::ranges::all_of(name, may_be_in_name))
    throw Error(
        Errc::invalid_argument,
        formatted("\"{}\" has a character that no interface name may have", std::string(name)));
  if (name.size() >= IFNAMSIZ)
    throw Error(Errc::invalid_argument,
                formatted("\"{}\" is longer than the {} characters of an interface name",
                          std::string(name), IFNAMSIZ - 1));
}

}  // namespace

InterfaceFilter InterfaceFilter::parse(std::string_view text) {
  InterfaceFilter filter;
  filter.text = text;
  std::string_view rest = trimmed(text);
  bool excluding = false;
  for (bool more = !rest.empty(); more;) {
    const std::size_t comma = rest.find(',');
    std::string_view name = trimmed(rest.substr(0, comma));
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    if (name.starts_with('^')) {
      excluding = true;
      name.remove_prefix(1);
    }
    check_name(name);
    (excluding ? filter.excluded : filter.included).emplace_back(name);
  }
  return filter;
}

bool InterfaceFilter::excludes(std::string_view interface_name) const {
  return std::ranges::any_of(
      excluded, [&](const std::string& prefix) { return interface_name.starts_with(prefix); });
}

}  // namespace tccl
