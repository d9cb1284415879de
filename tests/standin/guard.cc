// What PyTorch asks of a device: c10's guard (devices, streams, events) and the accelerator's
// hooks.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <memory>

#include "memory.h"
#include "operators.h"
#include "streams.h"

namespace standin {
namespace {

/// What c10::Event points at: the last place that was recorded.
struct Event {
  Marker marker;
};

bool is_ready(const Marker& marker) {
  return marker.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool ignores_host_waits() { return switches().ignore_host_waits.load(std::memory_order_relaxed); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  // ---- devices

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    set_current_device(device.index());
    return previous;
  }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void synchronizeDevice(c10::DeviceIndex index) const override { synchronize_device(index); }

  // ---- streams

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return stream_from_pool(device.index());
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return stream_from_pool(device.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue_of(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    return ignores_host_waits() || queue_of(stream).idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    if (!ignores_host_waits()) queue_of(stream).synchronize();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_use(data, stream);
  }

  // ---- events

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->marker = queue_of(stream).record();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr || switches().ignore_stream_waits.load(std::memory_order_relaxed)) return;
    queue_of(stream).wait_for(static_cast<Event*>(event)->marker);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || ignores_host_waits() || is_ready(static_cast<Event*>(event)->marker);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr && !ignores_host_waits()) {
      wait_on_host(static_cast<Event*>(event)->marker);
    }
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex /*device*/) const override {
    TORCH_CHECK(from != nullptr && to != nullptr, "standin: both events must have been recorded");
    const auto elapsed =
        static_cast<Event*>(to)->marker.get() - static_cast<Event*>(from)->marker.get();
    return std::chrono::duration<double, std::milli>(elapsed).count();
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return is_in_use(index); }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = current_device();
    set_current_device(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }

  // Random numbers are made by the host, from its generator.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*index*/) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex /*index*/) const override {
    return at::detail::createCPUGenerator();
  }
};

[[maybe_unused]] const bool kHooksAreRegistered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // read until the process ends
  return true;
}();

}  // namespace
}  // namespace standin
