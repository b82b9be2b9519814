#pragma once
// The events of the live view and the cache tree as JSON. Totals since the start, so that an event
// that is missed changes no later rate. Pure.
//
//   json::object event = live_json(moment);

#include <map>
#include <string>

#include <boost/json/object.hpp>

#include "engine/engine.h"
#include "engine/engine_view.h"
#include "server/live/live_series.h"

namespace baleen::server {

namespace json = boost::json;

/// What is known at one moment.
struct LiveMoment {
  double time_s = 0.0;  // since the server was made
  engine::EngineStats stats;
  engine::EngineView view;               // may be older than the stats where the engine was busy
  double cpu_s = 0.0;                    // of the process, user and system
  int64_t resident_bytes = 0;            // likewise
  std::map<std::string, double> curves;  // LiveSeries: the latest values
  int64_t curve_points = 0;              // points that were ever added
};

json::object live_json(const LiveMoment& moment);

/// The points of every curve: {"curve_points": N, "curves": {name: [[at, value], ...]}}.
json::object curves_json(const LiveSeries& series);

/// `view.tree` without a value: a server that shares no cache, or an empty answer.
json::object tree_json(const engine::EngineView& view);

}  // namespace baleen::server
