#include "server/live/live_json.h"

#include <utility>
#include <vector>

#include <boost/json/array.hpp>
#include <fmt/format.h>

namespace baleen::server {
namespace {

json::object pool_json(const char* name, const cache::PoolFill& fill) {
  return {{"name", name}, {"total", fill.total}, {"used", fill.used}, {"kept", fill.kept}};
}

json::array pools_json(const std::optional<cache::PoolFills>& pools) {
  if (!pools) {
    return {};
  }
  json::array out{pool_json("pages", pools->pages), pool_json("windows", pools->windows)};
  if (pools->points.total > 0) {
    out.push_back(pool_json("resume points", pools->points));
  }
  if (pools->open_groups.total > 0) {
    out.push_back(pool_json("open groups", pools->open_groups));
  }
  return out;
}

json::object cache_json(const cache::CacheStats& stats) {
  json::object cut;
  for (int i = 0; i < cache::kNumCutReasons; ++i) {
    const auto at = static_cast<size_t>(i);
    cut[cache::cut_reason_name(static_cast<cache::CutReason>(i))] =
        json::object{{"hits", stats.cut_hits[at]}, {"lost_tokens", stats.lost_tokens[at]}};
  }
  int64_t captures = 0;
  for (const int64_t count : stats.captures) {
    captures += count;
  }
  return {{"admissions", stats.admissions},
          {"refused", stats.admissions_refused},
          {"prompt_tokens", stats.prompt_tokens},
          {"cached_tokens", stats.cached_tokens},
          {"hits_live", stats.hits_live},
          {"hits_point", stats.hits_point},
          {"cut", std::move(cut)},
          {"captures", captures},
          {"stored_pages", stats.pages_stored},
          {"evicted_pages", stats.evicted_pages},
          {"evicted_windows", stats.evicted_windows},
          {"evicted_points", stats.evicted_points}};
}

json::array counts_json(const std::vector<int64_t>& counts) {
  json::array out;
  for (const int64_t count : counts) {
    out.push_back(json::value(count));
  }
  return out;
}

json::object run_json(const cache::TreeViewRun& run) {
  json::array points;
  for (const cache::TreeViewPoint& point : run.points) {
    points.push_back(json::object{{"position", point.position},
                                  {"kind", cache::point_kind_name(point.kind)},
                                  {"pins", point.pins}});
  }
  return {{"parent", run.parent},
          {"first_page", run.first.value()},
          {"last_page", run.last.value()},
          {"num_pages", run.num_pages},
          {"begin_tokens", run.begin_tokens},
          {"is_live", run.is_live},
          {"locks", run.locks},
          {"window_locks", run.window_locks},
          {"age", run.age},
          {"hash", fmt::format("{:016x}", run.hash)},
          {"num_children", run.num_children},
          {"num_hidden", run.num_hidden},
          {"points", std::move(points)}};
}

}  // namespace

json::object live_json(const LiveMoment& moment) {
  const engine::EngineStats& stats = moment.stats;
  json::object out{
      {"time_s", moment.time_s},
      {"state", engine::engine_state_name(stats.state)},
      {"paused", stats.is_paused},
      {"running", stats.num_running},
      {"waiting", stats.num_waiting},
      {"slots", stats.capacity.num_slots},
      {"used_tokens", stats.num_used_tokens},
      {"steps", stats.num_steps},
      {"step_s", moment.view.step_s},
      {"scheduling_s", stats.scheduling_s},
      {"late_step_s", stats.late_step_s},
      {"preemptions", stats.num_preemptions},
      {"generated_tokens", stats.num_drawn},
      {"prefilled_tokens", moment.view.prefilled_tokens},
      {"pools", pools_json(moment.view.pools)},
      {"cache", stats.capacity.cache ? json::value(cache_json(stats.cache)) : json::value(nullptr)},
      {"process",
       json::object{{"cpu_s", moment.cpu_s}, {"resident_bytes", moment.resident_bytes}}}};
  out["drafts"] = json::object{{"verify_steps", stats.drafts.verify_steps},
                               {"tried", counts_json(stats.drafts.drafted_at)},
                               {"stood", counts_json(stats.drafts.accepted_at)}};
  json::object curves;
  for (const auto& [name, value] : moment.curves) {
    curves[name] = value;
  }
  out["curves"] = std::move(curves);
  out["curve_points"] = moment.curve_points;
  return out;
}

json::object curves_json(const LiveSeries& series) {
  const int64_t num_points = series.num_added();  // before the points: a later one is read again
  json::object curves;
  for (const auto& [name, points] : series.curves()) {
    json::array list;
    for (const LiveSeries::Point& point : points) {
      list.push_back(json::array{point.at, point.value});
    }
    curves[name] = std::move(list);
  }
  return {{"curve_points", num_points}, {"curves", std::move(curves)}};
}

json::object tree_json(const engine::EngineView& view) {
  const cache::TreeView tree = view.tree.value_or(cache::TreeView{});
  json::array runs;
  for (const cache::TreeViewRun& run : tree.runs) {
    runs.push_back(run_json(run));
  }
  return {{"has_cache", view.pools.has_value()},
          {"root", view.tree ? tree.root.value() : 0},
          {"page_tokens", tree.page_tokens},
          {"num_pages", tree.num_pages},
          {"num_points", tree.num_points},
          {"num_hidden", tree.num_hidden},
          {"runs", std::move(runs)}};
}

}  // namespace baleen::server
