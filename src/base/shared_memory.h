// Memory that several processes map: a sealed memfd, so nothing is left behind after kill -9 and
// no size limit of /dev/shm applies. It is sparse: pages cost nothing until they are touched.
// Thread-safe after construction.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>

#include "base/crypto.h"
#include "base/fd.h"

namespace tccl {

/// Of this machine.
std::size_t page_bytes();
/// So many bytes that they fill whole pages: at least as many.
std::size_t round_up_to_pages(std::size_t bytes);

class SharedMemory {
 public:
  /// A new segment, zeroed.
  static std::shared_ptr<SharedMemory> create(std::size_t bytes);
  /// A segment that another context made; `id` names it. A process maps each segment once,
  /// whichever of its contexts asks: ranks that are threads then share addresses.
  static std::shared_ptr<SharedMemory> open(const Fd& fd, std::size_t bytes, const Digest& id);

  SharedMemory(Fd fd, std::size_t bytes, const Digest& id);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const Digest& id() const noexcept { return id_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  /// Gives the pages of a range back; they read as zero afterwards.
  void discard(std::size_t offset, std::size_t bytes) noexcept;
  /// Whether a forked child sees a range, then shared with its parent. At first it sees none.
  void inherit_in_child(std::size_t offset, std::size_t bytes, bool inherit) noexcept;
  /// Puts pages of this process alone, with the same contents, at the addresses of a range, while
  /// other processes keep the pages that were there. Throws Error{system}.
  void make_private(std::size_t offset, std::size_t bytes);
  /// Puts the segment's own pages there again. False if the system refuses.
  bool make_shared(std::size_t offset, std::size_t bytes) noexcept;
  /// In a forked child: lets go of the descriptor. Of the mapping it has what it was to inherit.
  void drop_in_child() noexcept { fd_.reset(); }

 private:
  Fd fd_;
  std::byte* base_;
  std::size_t bytes_;
  Digest id_;
  pid_t owner_;  // a forked child must not unmap an address range that is not ours there
};

}  // namespace tccl
