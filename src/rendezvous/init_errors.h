// The error messages of a rendezvous, all of which begin with: init of group world. Each blames a
// rank (Error::ranks()), except StoreFailure: any other error that blames none comes from a socket or
// from the store.
// Thread safety: functions without shared state.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/rendezvous.h"
#include "tccl/error.h"

namespace tccl {

/// `init of group world: text`
Error init_error(const std::string& group, Errc code, const std::string& text,
                 std::vector<int> ranks = {});

/// `init of group world timed out after 30.0 s: text`
Error init_timeout(const RendezvousOptions& options, const std::string& text,
                   std::vector<int> ranks = {});

/// Whether the error is a timeout of a socket or of the store.
bool is_unattributed_timeout(const Error& error);
/// Whether the error is a failure of a system call or of the store.
bool is_unattributed_system_error(const Error& error);

/// A failure of the store that another rank may have caused: before the group has a secret, nothing
/// shows whether the process that serves the store has ended.
struct StoreFailure final : Error {
  explicit StoreFailure(const Error& error) : Error(error) {}
};

/// The exception that is being handled, as an Error that names a rank: itself, or
/// `init of group world: rank 2 (host b, pid 4711) failed before the group was formed: text`. If the
/// store has failed because rank 0, which served it, has ended: ended_error(). A StoreFailure blames
/// no rank: `the store, which rank 0 or the launcher serves, may have ended: text; noticed by rank 2
/// on host b, pid 4711`.
Error attributed_to_this_rank(const RendezvousOptions& options);

/// `init of group world: rank 2 (host b, pid 4711) could not start: text`
Error failed_start_error(const RendezvousOptions& options, const std::string& reason);

/// `init of group world: rank 2 (host b, pid 4711) was interrupted before the group was formed`
Error interrupt_error(const RendezvousOptions& options);

/// `init of group world: rank 2 (host b, pid 4711) ended before the group was formed (connection
/// closed by peer)`
Error ended_error(const RendezvousOptions& options, const std::string& process, int rank);

/// Names no rank: the rank that was refused attributes it to itself.
Error other_user_error(const RendezvousOptions& options, const std::string& coordinator,
                       const std::string& member);

/// `process` left or did not answer: `reason` is the error of its connection.
Error incomplete_rank_error(const RendezvousOptions& options, const std::string& process, int rank,
                            const Error& reason);

/// What has kept this rank from forming the group until the deadline, if it can be known: a rank of
/// this host whose process is stopped, else what another rank publishes within half a second per
/// level of waiting ranks, at most 2 s. `levels`: how many ranks may wait for each other between the
/// culprit and this rank.
std::optional<Error> known_cause_of_timeout(const RendezvousOptions& options, int levels);

/// If some of `missing`, which have not joined, are stalled: an error that blames those alone. The
/// others may wait for them in another group.
std::optional<Error> stalled_members_timeout(const RendezvousOptions& options,
                                             const std::vector<int>& missing);

/// "rank 2 (host b, pid 4711)", "rank 2 (host b, pid 4711), rank 3 (host b, pid 4712) and 6 more"
std::string joined_processes_text(const RendezvousOptions& options, std::span<const int> ranks);

/// Reads from the store which ranks joined, and names those that did not, or that joined but do not
/// wait for the others: `... timed out after 30.0 s: rank 2 (host b, pid 4711) joined but never
/// completed the rendezvous; ranks 0,1 waited for it`. `local_waiters` are known to wait.
Error missing_ranks_timeout(const RendezvousOptions& options, std::span<const int> local_waiters);

}  // namespace tccl
