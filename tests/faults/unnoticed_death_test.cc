// A system without robust mutexes and pidfds, such as some sandboxes: the death of a rank is noticed
// at the timeout only, and the job is told so.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "harness.h"

namespace faults {
namespace {

/// These system calls fail with ENOSYS from now on, in this thread and in those that it starts.
void forbid_noticing_deaths() {
  const auto is_call = [](long number) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0,
                                1);
  };
  const sock_filter refuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
  std::array<sock_filter, 8> filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      is_call(SYS_pidfd_open),
      refuse,
      is_call(SYS_set_robust_list),
      refuse,
      is_call(SYS_get_robust_list),
      refuse,
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{filter.size(), filter.data()};
  check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
  check(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "PR_SET_SECCOMP");
}

TEST(UnnoticedDeathProcess, IsWarnedOfOncePerJobAndEndsAtTheTimeout) {
  Ranks ranks(3, [](Rank& rank) {
    ::unsetenv("RANK");  // a launcher's: the process with rank 0 warns
    forbid_noticing_deaths();
    const int logged = ::memfd_create("logged", 0);
    check(::dup2(logged, 2) == 2, "dup2");
    auto comm = rank.join("world", 2s);
    comm->run(tccl::barrier());
    char text[2000] = {};
    static_cast<void>(!::pread(logged, text, sizeof text - 1, 0));
    rank.report("logged " + std::string(text, ::strcspn(text, "\n")));
    if (rank.rank == 1) ::raise(SIGKILL);
    comm->run(tccl::barrier());
  });
  ranks.finish();
  const auto warning = ranks.outcomes[0].find("logged ");
  ASSERT_TRUE(warning) << ranks.transcript();
  EXPECT_NE(warning->text.find("neither robust mutexes (set_robust_list) nor pidfds (pidfd_open)"),
            std::string::npos)
      << warning->text;
  EXPECT_EQ(ranks.outcomes[2].find("logged ")->text, "logged ");
  for (const std::size_t survivor : {0, 2}) {
    const auto error = ranks.outcomes[survivor].find("error timeout");
    ASSERT_TRUE(error) << ranks.transcript();
    EXPECT_NE(error->text.find("timed out after 2.0 s (the timeout of this call); rank 1 (host "),
              std::string::npos)
        << error->text;
  }
}

}  // namespace
}  // namespace faults
