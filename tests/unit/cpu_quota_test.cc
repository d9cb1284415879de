// cpu_quota(): the CPU limits of cgroups, read from a directory with the files of a machine.
#include "base/cpu_quota.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tccl {
namespace {

class CpuQuotaTest : public ::testing::Test {
 protected:
  CpuQuotaTest() {
    char name[] = "/tmp/tccl-cpu-quota-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  ~CpuQuotaTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// The process is in cgroup `path`; the mount shows the part of the hierarchy below `mounted`.
  void mount_v2(const std::string& path, const std::string& mounted = "/") const {
    write("/proc/self/cgroup", "0::" + path + "\n");
    write("/proc/self/mountinfo",
          "22 1 0:20 / /proc rw,relatime shared:5 - proc proc rw\n"
          "30 23 0:26 " +
              mounted + " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void mount_v1(const std::string& path) const {
    write("/proc/self/cgroup",
          "9:memory:/elsewhere\n4:cpu,cpuacct:" + path + "\n1:name=systemd:/\n0::/\n");
    write("/proc/self/mountinfo",
          "31 23 0:28 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"
          "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
          "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  }
  [[nodiscard]] CpuQuota read() const { return cpu_quota(root_); }

  std::string root_;
};

TEST_F(CpuQuotaTest, OfCgroupV2) {
  mount_v2("/job");
  write("/sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(read().cpus, 1.5);
  EXPECT_NE(read().cgroup, 0U);
}

TEST_F(CpuQuotaTest, MaxIsNoLimit) {
  mount_v2("/job");
  write("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_FALSE(read().is_limited());
  EXPECT_EQ(read().cgroup, 0U);
}

/// A slice of systemd around the job.
TEST_F(CpuQuotaTest, TheTightestOfAllLevels) {
  mount_v2("/slice/job/rank0");
  write("/sys/fs/cgroup/slice/cpu.max", "800000 100000\n");
  write("/sys/fs/cgroup/slice/job/cpu.max", "200000 100000\n");
  write("/sys/fs/cgroup/slice/job/rank0/cpu.max", "max 100000\n");
  const CpuQuota of_rank_0 = read();
  EXPECT_EQ(of_rank_0.cpus, 2);
  mount_v2("/slice/job/rank1");
  EXPECT_EQ(read().cgroup, of_rank_0.cgroup) << "both ranks share the quota of the job";
  write("/sys/fs/cgroup/slice/job/rank1/cpu.max", "50000 100000\n");
  EXPECT_EQ(read().cpus, 0.5);
  EXPECT_NE(read().cgroup, of_rank_0.cgroup);
}

/// Docker with --cpus in a slice with the same limit: all ranks of the slice share it.
TEST_F(CpuQuotaTest, OfEqualLimitsTheOutermost) {
  mount_v2("/slice/rank0");
  write("/sys/fs/cgroup/slice/cpu.max", "200000 100000\n");
  write("/sys/fs/cgroup/slice/rank0/cpu.max", "200000 100000\n");
  write("/sys/fs/cgroup/slice/rank1/cpu.max", "200000 100000\n");
  const CpuQuota of_rank_0 = read();
  EXPECT_EQ(of_rank_0.cpus, 2);
  mount_v2("/slice/rank1");
  EXPECT_EQ(read().cgroup, of_rank_0.cgroup);
}

/// A container with a cgroup namespace: its own cgroup is "/".
TEST_F(CpuQuotaTest, OfAContainerWithACgroupNamespace) {
  mount_v2("/");
  write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(read().cpus, 1);
}

/// Without one, the path is the host's, and the mount shows what is below the container's.
TEST_F(CpuQuotaTest, OfAContainerWithoutACgroupNamespace) {
  mount_v2("/docker/1234/job", "/docker/1234");
  write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  write("/sys/fs/cgroup/job/cpu.max", "300000 100000\n");
  EXPECT_EQ(read().cpus, 3);
  mount_v2("/../other", "/");
  EXPECT_EQ(read().cpus, 4) << "a path outside of what is mounted";
}

TEST_F(CpuQuotaTest, OfCgroupV1) {
  mount_v1("/docker/1234");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(read().is_limited());
  write("/sys/fs/cgroup/cpu,cpuacct/docker/1234/cpu.cfs_quota_us", "250000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/1234/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read().cpus, 2.5);
}

TEST_F(CpuQuotaTest, WhatCannotBeReadIsNoLimit) {
  EXPECT_FALSE(read().is_limited());
  write("/proc/self/cgroup", "garbage\n0::\n::::\n");
  write("/proc/self/mountinfo", "garbage - cgroup2\n - cgroup2 a b\n");
  EXPECT_FALSE(read().is_limited());
  mount_v2("/job");
  write("/sys/fs/cgroup/job/cpu.max", "none\n");
  EXPECT_FALSE(read().is_limited());
  write("/sys/fs/cgroup/job/cpu.max", "-5 100000\n");
  EXPECT_FALSE(read().is_limited());
  write("/sys/fs/cgroup/job/cpu.max", "100000 0\n");
  EXPECT_FALSE(read().is_limited());
}

TEST(CpuQuota, OfThisProcessCanBeRead) { EXPECT_GE(cpu_quota().cpus, 0); }

}  // namespace
}  // namespace tccl
