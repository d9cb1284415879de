#include "communicator/shrink.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/wait.h"
#include "communicator/shrink_attempt.h"

namespace tccl {
namespace {

using KeepOpen = std::function<std::unique_lock<std::mutex>()>;

/// How often a rank looks whether the others have called. They usually do within milliseconds, when
/// they have learned of the same failure.
constexpr std::chrono::microseconds kQuickInterval{100};
constexpr std::chrono::milliseconds kQuickPhase{100};
constexpr std::chrono::milliseconds kSlowInterval{2};

/// `excluded` is sorted.
void validate(const std::vector<int>& excluded, const Membership& parent) {
  const auto refuse = [&](const std::string& problem) {
    throw Error(Errc::invalid_argument,
                formatted("shrink of group {}: {}", parent.name(), problem));
  };
  for (std::size_t i = 0; i < excluded.size(); ++i) {
    if (excluded[i] < 0 || excluded[i] >= parent.size())
      refuse(formatted("rank {} to exclude is not in a group of {} ranks", excluded[i],
                       parent.size()));
    if (excluded[i] == parent.rank())
      refuse(
          formatted("rank {} cannot exclude itself: excluded ranks do not call it", excluded[i]));
    if (i > 0 && excluded[i] == excluded[i - 1])
      refuse(formatted("rank {} is excluded twice", excluded[i]));
  }
}

GroupParts run(ShrinkAttempt& attempt, const std::function<void()>& check_interrupt,
               const KeepOpen& keep_open) {
  {
    const auto lock = keep_open();
    attempt.begin();
  }
  const auto begun = Clock::now();
  auto next_interrupt = begun + kInterruptInterval;
  for (;;) {
    {
      const auto lock = keep_open();
      if (attempt.poll()) return attempt.finish();
    }
    if (check_interrupt && Clock::now() >= next_interrupt) {
      check_interrupt();
      next_interrupt = Clock::now() + kInterruptInterval;
    }
    if (Clock::now() - begun < kQuickPhase)
      std::this_thread::sleep_for(kQuickInterval);
    else
      std::this_thread::sleep_for(kSlowInterval);
  }
}

/// Without effect if the outcome of the attempt is known.
void fail(ShrinkAttempt& attempt, const Membership& parent, Errc code, const std::string& why,
          const KeepOpen& keep_open) noexcept {
  try {
    const auto lock = keep_open();
    const int rank = parent.rank();
    attempt.fail(attempt.error(code, formatted("{} {}", parent.who(rank), why), {rank}));
  } catch (...) {
    // The other ranks learn that this rank has left the group, or fail at the timeout.
  }
}

}  // namespace

GroupParts shrink_group(ContextImpl& context, const GroupParts& parent, ShrinkState& state,
                        std::vector<int> excluded, const Communicator::Options& options,
                        const KeepOpen& keep_open) {
  std::ranges::sort(excluded);
  validate(excluded, *parent.membership);
  ShrinkAttempt attempt(context, parent, std::move(excluded), ++state.attempts, options,
                        state.early_messages);
  try {
    return run(attempt, context.check_interrupt(), keep_open);
  } catch (const Error& error) {
    fail(attempt, *parent.membership, error.code(),
         formatted("could not take part: {}", error.what()), keep_open);
    throw;
  } catch (const std::bad_alloc&) {
    fail(attempt, *parent.membership, Errc::system, "is out of memory", keep_open);
    throw;
  } catch (...) {
    fail(attempt, *parent.membership, Errc::aborted, "was interrupted", keep_open);
    throw;
  }
}

}  // namespace tccl
