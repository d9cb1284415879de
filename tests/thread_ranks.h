// Ranks as threads of one process, each with a context of its own, as a process would have.
#pragma once

#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tccl/tccl.h"

using Comm = std::shared_ptr<tccl::Communicator>;

inline void run_threads(int size, const std::function<void(int rank, const Comm& comm)>& body) {
  using namespace std::chrono_literals;
  char name[] = "/tmp/tccl-threads-XXXXXX";
  const std::filesystem::path directory = ::mkdtemp(name);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      const auto context = tccl::Context::create();
      const auto store = tccl::file_store((directory / "store").string());
      const Comm comm = tccl::Communicator::create(context, *store, rank, size,
                                                   {.name = "threads", .timeout = 30s});
      body(rank, comm);
      comm->close();
      context->close();
    });
  for (std::thread& thread : ranks) thread.join();
  std::filesystem::remove_all(directory);
}
