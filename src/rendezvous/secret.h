// The secret of a group: random, made by rank 0 for each rendezvous and distributed by the store.
// It authenticates the ranks to each other, and names the rendezvous socket and the keys of the
// store. With CCL_SECRET_FILE the content of that file is mixed in, so that access to the store is
// not enough.
// Thread safety: functions without shared state.
#pragma once

#include <string>

#include "rendezvous/rendezvous.h"

namespace tccl {

/// Also publishes this rank's JoinRecord. Throws Error{timeout} if rank 0 publishes no secret,
/// Error{invalid_argument} if the files of two ranks differ.
std::string agree_on_secret(const RendezvousOptions& options, const std::string& secret_file);

/// Removes the keys of agree_on_secret(), so that the same store can serve another group.
void remove_rendezvous_keys(Store& store, int rank) noexcept;
/// After a failed rendezvous, so that the next attempt does not read its secret. The JoinRecords
/// stay: the error messages of other ranks need them.
void remove_failed_rendezvous_keys(Store& store, int rank) noexcept;

/// Name of the abstract Unix socket on which the coordinator of a host accepts the other ranks.
std::string rendezvous_socket_name(const std::string& secret);

}  // namespace tccl
