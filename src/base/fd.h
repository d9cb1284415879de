// A file descriptor that closes itself.
// Thread safety: none; a value with one owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace tccl {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  void reset() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  /// Another descriptor of the same open file. An invalid Fd if this one is invalid or the limit is
  /// reached.
  [[nodiscard]] Fd duplicate() const noexcept {
    return Fd(fd_ < 0 ? -1 : ::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Raises the soft limit of open files (RLIMIT_NOFILE) as far as the hard limit allows.
void raise_descriptor_limit() noexcept;

}  // namespace tccl
