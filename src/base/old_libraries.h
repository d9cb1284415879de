// The part of old_libraries.cc that tests call.
// Thread safety: functions without shared state.
#pragma once

#include <pthread.h>
#include <time.h>

namespace tccl {

/// The time on another clock at which `deadline` is reached, given the present times of both.
timespec moved_to_clock(const timespec& deadline, const timespec& now, const timespec& other_now);

/// Does what pthread_cond_clockwait() does, by pthread_cond_timedwait(): on the wall clock. If that
/// is set back during the wait, the wait takes longer.
int wait_on_wall_clock(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                       const timespec* deadline);

}  // namespace tccl
