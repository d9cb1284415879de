#include "base/shared_memory.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>

#include "base/fork_hook.h"
#include "base/format.h"
#include "base/system_error.h"

namespace tccl {
namespace {

struct Cache {
  std::mutex mutex;
  std::map<Bytes32, std::weak_ptr<SharedMemory>> by_id;
  // A child inherits the entries but not the mappings.
  ForkHook fork_hook{mutex, [this] { by_id.clear(); }};
};

/// One mapping per segment and process. Never destroyed: contexts may outlive static destructors.
Cache& cache() {
  static auto* const cache = new Cache;
  return *cache;
}

[[noreturn]] void throw_too_large(const char* call, std::size_t bytes) {
  throw_system_error(
      formatted("{}: {} bytes of address space for shared memory (CCL_SHARED_BYTES; the limit of "
                "the process may be RLIMIT_AS or RLIMIT_FSIZE)",
                call, bytes));
}

Fd new_sealed_memfd(std::size_t bytes) {
  Fd fd(::memfd_create("tccl", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_system_error("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) throw_too_large("ftruncate", bytes);
  // Without this seal a peer could shrink the file, and an access would raise SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    throw_system_error("fcntl(F_ADD_SEALS)");
  return fd;
}

void erase_expired(Cache& cache) {
  std::erase_if(cache.by_id, [](const auto& entry) { return entry.second.expired(); });
}

}  // namespace

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_up_to_pages(std::size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

SharedMemory::SharedMemory(Fd fd, std::size_t bytes, const Bytes32& id)
    : fd_(std::move(fd)), bytes_(bytes), id_(id), owner_(::getpid()) {
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (address == MAP_FAILED) throw_too_large("mmap", bytes);
  base_ = static_cast<std::byte*>(address);
  // Forked children (data-loader workers) must neither keep the memory alive nor write to it,
  // except to ranges that inherit_in_child() allows.
  inherit_in_child(0, bytes, false);
  ::madvise(address, bytes, MADV_DONTDUMP);
}

SharedMemory::~SharedMemory() {
  if (::getpid() == owner_) ::munmap(base_, bytes_);
}

std::shared_ptr<SharedMemory> SharedMemory::create(std::size_t bytes) {
  auto memory = std::make_shared<SharedMemory>(new_sealed_memfd(bytes), bytes, random_bytes32());
  const std::lock_guard lock(cache().mutex);
  erase_expired(cache());
  cache().by_id[memory->id()] = memory;
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::open(const Fd& fd, std::size_t bytes,
                                                 const Bytes32& id) {
  const std::lock_guard lock(cache().mutex);
  erase_expired(cache());
  if (const auto found = cache().by_id.find(id); found != cache().by_id.end())
    if (auto known = found->second.lock()) return known;
  Fd own = fd.duplicate();
  if (!own) throw_system_error("dup(memfd)");
  auto memory = std::make_shared<SharedMemory>(std::move(own), bytes, id);
  memory->fd_.reset();  // the mapping is enough
  cache().by_id[id] = memory;
  return memory;
}

void SharedMemory::discard(std::size_t offset, std::size_t bytes) noexcept {
  ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
}

void SharedMemory::inherit_in_child(std::size_t offset, std::size_t bytes, bool inherit) noexcept {
  ::madvise(base_ + offset, bytes, inherit ? MADV_DOFORK : MADV_DONTFORK);
}

void SharedMemory::make_private(std::size_t offset, std::size_t bytes) {
  void* copy = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) throw_system_error("mmap(private memory)");
  std::memcpy(copy, base_ + offset, bytes);
  if (::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, base_ + offset) == MAP_FAILED) {
    ::munmap(copy, bytes);
    throw_system_error("mremap(private memory)");
  }
}

bool SharedMemory::make_shared(std::size_t offset, std::size_t bytes) noexcept {
  const void* address =
      ::mmap(base_ + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
             fd_.get(), static_cast<off_t>(offset));
  if (address == MAP_FAILED) return false;
  inherit_in_child(offset, bytes, false);
  ::madvise(base_ + offset, bytes, MADV_DONTDUMP);
  return true;
}

}  // namespace tccl
