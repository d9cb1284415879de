// Memory that several processes map: a sealed memfd, so kill -9 leaks nothing and the size limit of
// /dev/shm does not apply. The file is sparse: a page is allocated when it is first touched.
// Thread safety: every method may be called from any thread after construction.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>

#include "base/crypto.h"
#include "base/fd.h"

namespace tccl {

/// Page size of this machine.
std::size_t page_bytes();
std::size_t round_up_to_pages(std::size_t bytes);

class SharedMemory {
 public:
  /// A new segment, zeroed.
  static std::shared_ptr<SharedMemory> create(std::size_t bytes);
  /// Maps a segment that another context created; `id` identifies it. A process maps each segment
  /// once for all its contexts, so ranks that are threads of one process share addresses.
  static std::shared_ptr<SharedMemory> open(const Fd& fd, std::size_t bytes, const Bytes32& id);

  SharedMemory(Fd fd, std::size_t bytes, const Bytes32& id);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const Bytes32& id() const noexcept { return id_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  /// Frees the pages of a range; they read as zero afterwards.
  void discard(std::size_t offset, std::size_t bytes) noexcept;
  /// Whether a forked child inherits a range, shared with its parent. By default it inherits none.
  void inherit_in_child(std::size_t offset, std::size_t bytes, bool inherit) noexcept;
  /// Replaces the pages of a range by private copies at the same addresses; other processes keep
  /// the shared pages. Throws Error{system}.
  void make_private(std::size_t offset, std::size_t bytes);
  /// Maps the segment's shared pages there again. Returns false on failure.
  bool make_shared(std::size_t offset, std::size_t bytes) noexcept;
  /// In a forked child: closes the descriptor. The mapping has only the inherited ranges.
  void close_in_child() noexcept { fd_.reset(); }

 private:
  Fd fd_;
  std::byte* base_;
  std::size_t bytes_;
  Bytes32 id_;
  /// A forked child must not unmap the range: it has no mapping there (DONTFORK), and may have put
  /// another one.
  pid_t owner_;
};

}  // namespace tccl
