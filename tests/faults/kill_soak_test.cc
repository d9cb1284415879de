// A hundred jobs, every second one with a rank killed at a random moment: every survivor gets an
// error, none hangs, and nothing is leaked.
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "harness.h"

namespace faults {
namespace {

constexpr int kRuns = 100;

/// Resources of the machine that the library could leak.
struct Machine {
  std::set<std::string> files;  // in /dev/shm, and ours in /tmp
  long shmem_kib = 0;
  int sockets = 0;  // with our name
  int children = 0;

  static Machine look() {
    Machine m;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      m.files.insert(entry.path());
    for (const auto& entry : std::filesystem::directory_iterator("/tmp"))
      if (entry.path().filename().string().starts_with("tccl")) m.files.insert(entry.path());
    std::string word;
    for (std::ifstream info("/proc/meminfo"); info >> word;)
      if (word == "Shmem:") info >> m.shmem_kib;
    std::string line;
    for (std::ifstream unix_sockets("/proc/net/unix"); std::getline(unix_sockets, line);)
      m.sockets += line.find("@tccl-") != std::string::npos;
    std::ostringstream path;
    path << "/proc/self/task/" << ::getpid() << "/children";
    for (std::ifstream children(path.str()); children >> word;) ++m.children;
    return m;
  }
};

/// For 60 ms, or until a rank is killed.
void run_random_collectives(Rank& rank, unsigned seed, bool endless) {
  auto world = rank.join("soak");
  std::mt19937 random(seed);  // the same on all ranks
  std::vector<float> in(100'000, 1.0F);
  std::vector<float> out(300'000);
  rank.report("ready");
  const double end = now_ms() + 60;
  for (;;) {
    const std::size_t count = random() % (random() % 2 == 0 ? 100 : in.size());
    const int root = static_cast<int>(random() % 3);
    float stop = !endless && now_ms() > end ? 1.0F : 0.0F;
    world->run(tccl::allreduce(&stop, &stop, 1, DType::float32, ReduceOp::max));
    if (stop != 0) break;
    switch (random() % 5) {
      case 0:
        world->run(tccl::allreduce(in.data(), out.data(), count, DType::float32, ReduceOp::sum));
        break;
      case 1:
        world->run(tccl::broadcast(in.data(), count, DType::float32, root));
        break;
      case 2:
        world->run(tccl::allgather(in.data(), out.data(), count, DType::float32));
        break;
      case 3:
        world->run(tccl::alltoall(in.data(), out.data(), count / 3, DType::float32));
        break;
      default: {
        const auto send = world->start(tccl::send(in.data(), count * 4, (rank.rank + 1) % 3));
        world->run(tccl::recv(out.data(), count * 4, (rank.rank + 2) % 3));
        send->wait();
      }
    }
  }
}

TEST(KillSoakProcess, HundredRunsLeakNothing) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const Machine before = Machine::look();
  int killed_runs = 0;
  for (int run = 0; run < kRuns; ++run) {
    const unsigned run_seed = random();
    const bool kills = run % 2 != 0;
    Ranks ranks(3, [&](Rank& rank) { run_random_collectives(rank, run_seed, kills); });
    ASSERT_TRUE(ranks.all_reported("ready")) << ranks.transcript();
    if (!kills) {
      ranks.expect_all_exit_cleanly();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 50'000));
    const int victim = static_cast<int>(random() % 3);
    ranks.kill_rank(victim);
    ranks.finish(20s);
    ++killed_runs;
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      const auto error = ranks.outcomes[static_cast<std::size_t>(r)].find("error peer_lost");
      ASSERT_TRUE(error) << "run " << run << "\n" << ranks.transcript();
      EXPECT_NE(error->text.find("rank " + std::to_string(victim) + " (host"), std::string::npos)
          << error->text;
    }
  }
  const Machine after = Machine::look();
  EXPECT_EQ(before.files, after.files);
  EXPECT_EQ(before.sockets, after.sockets);
  EXPECT_EQ(before.children, after.children);
  EXPECT_NEAR(static_cast<double>(before.shmem_kib), static_cast<double>(after.shmem_kib), 1024);
  std::printf("%d runs, %d with a killed rank; Shmem %ld -> %ld KiB\n", kRuns, killed_runs,
              before.shmem_kib, after.shmem_kib);
}

}  // namespace
}  // namespace faults
