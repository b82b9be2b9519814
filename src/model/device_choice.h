#pragma once
// The device that a setting names. Any thread.
//
//   at::Device device = device_by_name("cuda");   // "cpu", "cuda" (the first one) or "cuda:N"

#include <string>

#include <c10/core/Device.h>

namespace baleen::model {

/// Throws ConfigError when the name is not of a device, or the device is not there; it says whether
/// the program, the driver or the card is missing.
c10::Device device_by_name(const std::string& name);

/// Memory of the device that no tensor has goes back to it, for others to take; the host keeps its
/// own.
void return_unused_memory(c10::Device device);

}  // namespace baleen::model
