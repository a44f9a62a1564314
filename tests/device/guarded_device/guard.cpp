#include "guard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <utility>

#include "counts.h"
#include "memory.h"
#include "streams.h"

namespace guarded {
namespace {

c10::Device device_at(c10::DeviceIndex index) { return {kDevice, index}; }

// What was queued on `queue` when it was recorded.
struct Event {
  const WorkQueue* queue;
  uint64_t number;
};

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device exchangeDevice(c10::Device device) const override { return device_at(exchange_device(device.index())); }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() < kDevices) exchange_device(device.index());
  }

  c10::Stream getStream(c10::Device device) const override { return current_queue(device.index()).stream(); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device_at(device.index() < 0 ? current_device() : device.index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return next_of_pool(device.index()).stream();
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return next_of_pool(device.index()).stream(); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_queue(queue_of(stream)).stream(); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue_of(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    const WorkQueue& queue = queue_of(stream);
    return queue.done(queue.last());
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(queue_of(stream)); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { synchronize(device); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device, c10::EventFlag) const override {
    TORCH_CHECK(device < 0 || device == stream.device_index(), "an event of guarded:", int{device}, " is recorded on ",
                stream);
    const WorkQueue& queue = queue_of(stream);
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = {&queue, queue.last()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    const auto& recorded = *static_cast<const Event*>(event);
    queue_of(stream).follow(*recorded.queue, recorded.number);
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    const auto& recorded = *static_cast<const Event*>(event);
    return recorded.queue->done(recorded.number);
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    count_wait();
    const auto& recorded = *static_cast<const Event*>(event);
    recorded.queue->wait(recorded.number);
    throw_kept(recorded.queue->device());
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_use(data.get_context(), queue_of(stream));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  at::Device getDeviceFromPtr(void* data) const override { return device_at(device_of(data)); }
  // Numbers are the CPU's, and drawn in the program's order.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

void resize_storage(const c10::Storage& storage, size_t bytes) {
  const c10::DeviceGuard on(storage.device());
  at::DataPtr data = allocator().allocate(bytes);
  if (storage.data()) allocator().copy_data(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

}  // namespace guarded
