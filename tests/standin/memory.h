// Memory of the stand-in device, and pinned memory of the host. Both are ordinary memory, filled
// with a pattern when fresh and again when freed, so that a read too early or too late shows: the
// pattern is NaN in every floating-point type and -1 in the integers. Safe from any thread.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>

namespace standin {

constexpr int kGarbage = 0xFF;

class Memory {
 public:
  explicit Memory(std::size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  void poison();

 private:
  void* data_;
  std::size_t bytes_;
};

/// Allocates on the current device. Memory is freed once the stream that was current then, and
/// those of record_use(), have done what they were given up to the free; a job of any other stream
/// finds garbage.
c10::Allocator* device_allocator();

/// `data` must come from device_allocator(); nothing happens otherwise.
void record_use(const c10::DataPtr& data, const c10::Stream& stream);

/// What a job holds on to: the bytes stay mapped after the free, as garbage. Null if `data` is not
/// of device_allocator().
std::shared_ptr<Memory> memory_of(const c10::DataPtr& data);

c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);

}  // namespace standin
