#include "memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "streams.h"

namespace standin {

Memory::Memory(std::size_t bytes) : data_(c10::alloc_cpu(bytes)), bytes_(bytes) { poison(); }

Memory::~Memory() { c10::free_cpu(data_); }

void Memory::poison() {
  if (bytes_ != 0) std::memset(data_, kGarbage, bytes_);
}

namespace {

// ---- of the device

struct Block {
  std::shared_ptr<Memory> memory;
  std::mutex mutex;
  std::set<Queue*> users;  ///< queues whose jobs up to the free may use the memory
};

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  if (forked_after_use()) return;
  // Each queue gets a share of the last moment, so none of them waits for another.
  const std::shared_ptr<void> last_moment(
      nullptr, [memory = block->memory](std::nullptr_t) { memory->poison(); });
  for (Queue* user : block->users) {
    if (!user->idle()) user->push([last_moment] {});
  }
}

Block* block_of(const c10::DataPtr& data) {
  return data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    check_not_forked_after_use();
    const c10::Device device(c10::kPrivateUse1, current_device());
    auto block = std::make_unique<Block>();
    block->memory = std::make_shared<Memory>(bytes);
    block->users = {&current_queue(device.index())};
    void* data = block->memory->data();
    return {data, block.release(), &free_block, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    current_queue(current_device()).synchronize();
    std::memcpy(target, source, bytes);
  }
};

// ---- pinned

class PinnedRanges {
 public:
  void add(const Memory& memory) {
    const std::lock_guard lock(mutex_);
    ranges_.emplace(address(memory.data()), memory.bytes());
  }

  void remove(const Memory& memory) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(address(memory.data()));
  }

  bool contain(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto after = ranges_.upper_bound(address(pointer));
    if (after == ranges_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return address(pointer) - begin < bytes;
  }

 private:
  static std::uintptr_t address(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> ranges_;  ///< address, bytes
};

PinnedRanges& pinned_ranges() {
  static auto& ranges = *new PinnedRanges;  // tensors may outlive static objects
  return ranges;
}

void free_pinned(void* context) {
  const std::unique_ptr<Memory> memory(static_cast<Memory*>(context));
  pinned_ranges().remove(*memory);
  memory->poison();
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK(!switches().refuse_pinned.load(std::memory_order_relaxed),
                "standin: no memory can be pinned");
    auto memory = std::make_unique<Memory>(bytes);
    pinned_ranges().add(*memory);
    void* data = memory->data();
    return {data, memory.release(), &free_pinned, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

DeviceAllocator the_device_allocator;
PinnedAllocator the_pinned_allocator;

REGISTER_ALLOCATOR(c10::kPrivateUse1, &the_device_allocator)

}  // namespace

c10::Allocator* device_allocator() { return &the_device_allocator; }

void record_use(const c10::DataPtr& data, const c10::Stream& stream) {
  Block* block = block_of(data);
  if (block == nullptr) return;
  const std::lock_guard lock(block->mutex);
  block->users.insert(&queue_of(stream));
}

std::shared_ptr<Memory> memory_of(const c10::DataPtr& data) {
  const Block* block = block_of(data);
  return block == nullptr ? nullptr : block->memory;
}

c10::Allocator* pinned_allocator() { return &the_pinned_allocator; }

bool is_pinned(const void* address) { return pinned_ranges().contain(address); }

}  // namespace standin
