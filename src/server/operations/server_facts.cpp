#include "server/operations/server_facts.h"

#include <boost/json/array.hpp>

#include "text/thinking.h"

namespace baleen::server {

namespace {

json::array released_json(engine::MemoryParts parts) {
  json::array names;
  if (parts.cache) {
    names.emplace_back("kv_cache");
  }
  if (parts.weights) {
    names.emplace_back("weights");
  }
  return names;
}

/// Pages of the prefix cache; null: there is none.
json::value pages_json(const engine::EngineStats& stats) {
  if (!stats.capacity.cache) {
    return nullptr;
  }
  const cache::ShadowRadixSizes& sizes = stats.capacity.cache->sizes;
  return json::object{{"full", sizes.full_pages},
                      {"free_full", stats.pages.free_full},
                      {"evictable_full", stats.pages.evictable_full},
                      {"swa", sizes.swa_pages},
                      {"free_swa", stats.pages.free_swa},
                      {"evictable_swa", stats.pages.evictable_swa}};
}

/// What /generate needs to be read: the shapes of its arrays.
json::value choices_json(const std::optional<cache::ChoiceLayout>& layout) {
  if (!layout) {
    return nullptr;
  }
  return json::object{
      {"routed_layers", json::array(layout->routed_layers.begin(), layout->routed_layers.end())},
      {"picking_layers", json::array(layout->picking_layers.begin(), layout->picking_layers.end())},
      {"num_experts", layout->num_experts},
      {"experts_per_token", layout->experts_per_token},
      {"entry_tokens", layout->ratio},
      {"index_topk", layout->topk}};
}

}  // namespace

json::object model_card(const ServerFacts& facts) {
  const ServerConfig& config = facts.config;
  return {{"id", config.model_name},
          {"object", "model"},
          {"created", facts.created},
          {"owned_by", "baleen"},
          {"root", config.model_path.empty() ? config.model_name : config.model_path},
          {"parent", nullptr},
          {"max_model_len", facts.max_context},
          {"chat_profile", chat_profile_name(config.chat_profile)},
          {"default_effort", text::default_effort_name(config.chat_profile)},
          {"default_thinking", config.default_thinking}};
}

json::object model_info(const ServerFacts& facts) {
  const ServerConfig& config = facts.config;
  const engine::EngineStats stats = facts.engine.stats();
  return {{"model_path", config.model_path},
          {"tokenizer_path", config.model_path},
          {"served_model_name", config.model_name},
          {"is_generation", true},
          {"preferred_sampling_params", nullptr},
          {"weight_version", *stats.weight_version},
          {"max_model_len", facts.max_context},
          {"chat_profile", chat_profile_name(config.chat_profile)}};
}

json::object server_load(const ServerFacts& facts) {
  const engine::EngineStats stats = facts.engine.stats();
  return {{"dp_rank", 0},
          {"num_reqs", stats.num_running + stats.num_waiting},
          {"num_waiting_reqs", stats.num_waiting},
          {"num_tokens", stats.num_used_tokens}};
}

json::object server_info(const ServerFacts& facts) {
  const ServerConfig& config = facts.config;
  const engine::EngineStats stats = facts.engine.stats();
  const engine::EngineConfig& engine_config = facts.engine.config();
  const engine::ExecutorInfo executor = facts.engine.executor_info();
  const engine::ExecutorCapacity& capacity = stats.capacity;
  const int64_t token_capacity = capacity.cache ? int64_t{capacity.cache->sizes.full_pages} *
                                                      capacity.cache->geometry.page_tokens
                                                : capacity.num_slots * capacity.max_context;
  const json::object state{{"memory_usage",
                            json::object{{"weight_bytes", executor.weight_bytes},
                                         {"state_bytes_per_token", executor.state_bytes_per_token},
                                         {"token_capacity", token_capacity}}},
                           {"effective_max_running_requests_per_dp", capacity.num_slots},
                           {"num_running_reqs", stats.num_running},
                           {"num_waiting_reqs", stats.num_waiting},
                           {"num_used_tokens", stats.num_used_tokens},
                           {"num_steps", stats.num_steps},
                           {"pages", pages_json(stats)}};
  return {{"version", config.version},
          {"model_path", config.model_path},
          {"served_model_name", config.model_name},
          {"weight_version", *stats.weight_version},
          {"host", config.http.host},
          {"chat_profile", chat_profile_name(config.chat_profile)},
          {"default_thinking", config.default_thinking},
          {"numerics", executor.numerics},
          {"state", engine::engine_state_name(stats.state)},
          {"context_length", facts.max_context},
          {"vocab_size", capacity.vocab_size},
          {"max_running_requests", capacity.num_slots},
          {"max_queued_requests", engine_config.max_queued},
          {"max_step_tokens", capacity.max_step_tokens},
          {"chunked_prefill_size", engine_config.max_prefill_chunk},
          {"queue_timeout_s", engine_config.queue_timeout_s},
          {"max_body_bytes", config.http.max_body_bytes},
          {"max_connections", config.http.max_connections},
          {"has_prefix_cache", capacity.cache.has_value()},
          {"is_paused", stats.is_paused},
          {"released_memory", released_json(stats.released)},
          {"recorded_choices", choices_json(capacity.choices)},
          {"internal_states", json::array{state}}};
}

}  // namespace baleen::server
