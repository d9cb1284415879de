// The secret of a group: what a rank makes of the value in the store, and of the secret file.
#include "rendezvous/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>

#include "memory_store.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

class SecretTest : public ::testing::Test {
 protected:
  RendezvousOptions options_of(int rank, std::chrono::milliseconds timeout = 20s) {
    return {.store = &store_,
            .group = "world",
            .rank = rank,
            .size = 2,
            .timeout = timeout,
            .deadline = deadline_after(timeout)};
  }
  std::string error_of_rank_1(std::chrono::milliseconds timeout, const std::string& file = "") {
    try {
      RendezvousOptions options = options_of(1, timeout);
      return "no error, but " + agree_on_secret(options, file);
    } catch (const Error& error) {
      return error.what();
    }
  }
  MemoryStore store_;
};

TEST_F(SecretTest, IsTheSameOnBothRanks) {
  RendezvousOptions first = options_of(0);
  RendezvousOptions second = options_of(1);
  const std::string secret = agree_on_secret(first, "");
  EXPECT_EQ(agree_on_secret(second, ""), secret);
}

TEST_F(SecretTest, AValueThatIsNoSecretIsNotTakenForADifferentOne) {
  store_.set("secret", "something of another program");
  const std::string error = error_of_rank_1(20s);
  EXPECT_NE(error.find("the store has 28 bytes under the key \"secret\" that are no secret"),
            std::string::npos)
      << error;
  EXPECT_EQ(error.find("different secrets"), std::string::npos) << error;
}

TEST_F(SecretTest, ARankWithoutRank0TimesOut) {
  const std::string error = error_of_rank_1(300ms);
  EXPECT_NE(error.find("init of group world timed out after 0.3 s: rank 0 published no secret"),
            std::string::npos)
      << error;
}

class SecretFile : public SecretTest {
 protected:
  void SetUp() override { std::ofstream(path_) << "of this file"; }
  void TearDown() override { std::remove(path_.c_str()); }
  const std::string path_ = "/tmp/tccl-secret-" + std::to_string(::getpid());
};

TEST_F(SecretFile, DifferentFilesAreReported) {
  RendezvousOptions first = options_of(0);
  agree_on_secret(first, "");
  const std::string error = error_of_rank_1(20s, path_);
  EXPECT_NE(error.find("have different secrets: CCL_SECRET_FILE must name a file"),
            std::string::npos)
      << error;
}

TEST_F(SecretFile, OnlyItsOwnerMayReadIt) {
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  EXPECT_EQ(secret_file_problem(path_), "");
  ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
  EXPECT_EQ(secret_file_problem(path_),
            "CCL_SECRET_FILE=" + path_ + ": other users may access it (mode 644): chmod 600");
  EXPECT_EQ(secret_file_problem(""), "");
}

}  // namespace
}  // namespace tccl
