// set_environment_variable(): what other threads read meanwhile stays valid.
#include "base/environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace tccl {
namespace {

TEST(Environment, ASetVariableIsSeen) {
  set_environment_variable("TCCL_TEST_A", "one");
  EXPECT_STREQ(::getenv("TCCL_TEST_A"), "one");
  set_environment_variable("TCCL_TEST_A", "two");
  EXPECT_STREQ(::getenv("TCCL_TEST_A"), "two");
  set_environment_variable("TCCL_TEST", "a shorter name");
  EXPECT_STREQ(::getenv("TCCL_TEST_A"), "two");
  ::setenv("TCCL_TEST_A", "three", /*overwrite=*/1);  // still possible
  EXPECT_STREQ(::getenv("TCCL_TEST_A"), "three");
}

TEST(Environment, AVariableThatIsRightAlreadyStays) {
  set_environment_variable("TCCL_TEST_F", "f");
  char** const before = environ;
  set_environment_variable("TCCL_TEST_F", "f");
  EXPECT_EQ(environ, before);
}

/// getenv() in another thread may be anywhere in the old array. setenv() would free that one.
TEST(Environment, TheOldVariablesStayAsTheyWere) {
  ::setenv("TCCL_TEST_B", "b", /*overwrite=*/1);  // the C library owns the array now
  char** const old = environ;
  std::vector<std::string> before;
  for (char** variable = old; *variable != nullptr; ++variable) before.emplace_back(*variable);
  for (int i = 0; i < 100; ++i)
    set_environment_variable("TCCL_TEST_C" + std::to_string(i), std::string(1000, 'c'));
  std::vector<std::string> after;
  for (char** variable = old; *variable != nullptr; ++variable) after.emplace_back(*variable);
  EXPECT_EQ(after, before);
  EXPECT_NE(environ, old);
}

TEST(Environment, OtherThreadsReadMeanwhile) {
  ::setenv("TCCL_TEST_D", "d", /*overwrite=*/1);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const char* value = ::getenv("TCCL_TEST_D");
      ASSERT_NE(value, nullptr);
      ASSERT_STREQ(value, "d");
    }
  });
  for (int i = 0; i < 2000; ++i)
    set_environment_variable("TCCL_TEST_E" + std::to_string(i % 50), std::to_string(i));
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace tccl
