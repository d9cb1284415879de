// The secret of a group: random, made by rank 0 for each rendezvous and distributed by the store.
// It authenticates the ranks to each other, and names the rendezvous socket and the keys of the
// store. With CCL_SECRET_FILE the content of that file is mixed in, so that access to the store is
// not enough.
// Thread safety: functions without shared state.
#pragma once

#include <string>

#include "rendezvous/packets.h"
#include "rendezvous/rendezvous.h"

namespace tccl {

/// On rank 0, publishes a new secret and RankZero; elsewhere sets `options.rank_zero`.
/// Throws Error{timeout} if rank 0 publishes no secret, Error{invalid_argument} if the files of two
/// ranks differ, StoreFailure on the ranks other than 0, and the failure of rank 0's rendezvous if that has ended already; this sets
/// `options.last_failed_attempt`.
std::string agree_on_secret(RendezvousOptions& options, const std::string& secret_file);

/// What is wrong with the permissions of CCL_SECRET_FILE; empty if nothing is.
std::string secret_file_problem(const std::string& secret_file);

/// Names a rendezvous in the store: rank 0 makes a new secret for each.
std::string attempt_of(const std::string& secret);

/// Called by rank 0 once all ranks know the secret, so that the same store can serve another group.
void remove_secret(Store& store) noexcept;
/// Called by rank 0 after a failed rendezvous: ranks that come later get the reason, and the next
/// rendezvous on this store does not use its secret.
void replace_secret_by_failure(const RendezvousOptions& options, const Status& failure) noexcept;

/// Name of the abstract Unix socket on which the coordinator of a host accepts the other ranks.
std::string rendezvous_socket_name(const std::string& secret);

}  // namespace tccl
