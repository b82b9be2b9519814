#pragma once
// JSON text for config files: one top-level key a line, numbers as people write them.

#include <string>

#include <boost/json.hpp>

namespace baleen::weights {

std::string json_object_text(const boost::json::object& object);

}  // namespace baleen::weights
