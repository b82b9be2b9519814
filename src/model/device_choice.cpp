#include "model/device_choice.h"

#include <charconv>
#include <string_view>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "base/error.h"

namespace baleen::model {

c10::Device device_by_name(const std::string& name) {
  constexpr std::string_view kCuda = "cuda";
  const std::string_view text = name;
  if (text == "cpu") {
    return {c10::DeviceType::CPU};
  }
  int index = 0;
  bool valid = text == kCuda;
  if (text.starts_with("cuda:")) {
    const char* begin = text.data() + kCuda.size() + 1;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, index);
    valid = error == std::errc() && stop == end && index >= 0 && index < 128;
  }
  if (!valid) {
    throw ConfigError("device \"" + name + "\" is not known; known are cpu, cuda and cuda:N");
  }
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    throw ConfigError("device \"" + name + "\": this program was built without CUDA");
  }
  const int count = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount();
  if (index >= count) {
    throw ConfigError("device \"" + name + "\" is not there: the driver reports " +
                      std::to_string(count) + " CUDA devices");
  }
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

void return_unused_memory(c10::Device device) {
  if (!device.is_cpu()) {
    at::getDeviceAllocator(device.type())->emptyCache();
  }
}

}  // namespace baleen::model
