#include "weights/generation_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/log.h"
#include "weights/json_fields.h"
#include "weights/mapped_file.h"

namespace baleen::weights {

GenerationConfig parse_generation_config(const std::string& text,
                                         const std::string& where,
                                         const ModelConfig& config) {
  const boost::json::object object = parse_json_object(text, where);
  JsonFields fields(object, where);
  GenerationConfig generation;
  const boost::json::value* eos = fields.find("eos_token_id");
  if (eos != nullptr && eos->is_array()) {
    generation.eos_token_ids = fields.integers("eos_token_id");
  } else {
    generation.eos_token_ids = {fields.integer("eos_token_id", config.eos_token_id)};
  }
  if (generation.eos_token_ids.empty()) {
    fields.refuse("eos_token_id", "the list is empty");
  }
  for (const int64_t id : generation.eos_token_ids) {
    if (id < 0 || id >= config.vocab_size) {
      fields.refuse("eos_token_id", fmt::format("{} is outside the vocabulary", id));
    }
  }
  const boost::json::value* sample = fields.find("do_sample");
  generation.do_sample = sample == nullptr || !sample->is_bool() || sample->get_bool();
  generation.temperature = fields.number("temperature", generation.temperature);
  generation.top_p = fields.number("top_p", generation.top_p);
  generation.top_k = fields.integer("top_k", generation.top_k);
  if (generation.temperature < 0) {
    fields.refuse("temperature",
                  fmt::format("must not be negative, got {}", generation.temperature));
  }
  if (generation.top_p <= 0 || generation.top_p > 1) {
    fields.refuse("top_p", fmt::format("must be in (0, 1], got {}", generation.top_p));
  }
  if (fields.has("max_new_tokens")) {
    generation.max_new_tokens = fields.integer("max_new_tokens");
  }
  generation.chat_profile = fields.text("chat_profile");
  if (generation.chat_profile && *generation.chat_profile != "v4" &&
      *generation.chat_profile != "v4-0731" && *generation.chat_profile != "v4.1") {
    fields.refuse("chat_profile",
                  fmt::format("expected v4, v4-0731 or v4.1, got {}", *generation.chat_profile));
  }
  for (const char* key :
       {"_from_model_config", "bos_token_id", "pad_token_id", "transformers_version"}) {
    fields.ignore(key);
  }
  const std::vector<std::string> unknown = fields.unused();
  if (!unknown.empty()) {
    log::warn("weights", "config_keys_unknown file={} keys={}", where, fmt::join(unknown, ","));
  }
  return generation;
}

GenerationConfig read_generation_config(const std::filesystem::path& folder,
                                        const ModelConfig& config) {
  const std::filesystem::path path = folder / "generation_config.json";
  if (!std::filesystem::exists(path)) {
    GenerationConfig generation;
    generation.eos_token_ids = {config.eos_token_id};
    return generation;
  }
  return parse_generation_config(read_text_file(path), path.string(), config);
}

std::string write_generation_config(const GenerationConfig& generation, const ModelConfig& config) {
  std::string text = "{\n";
  if (generation.chat_profile) {
    text += fmt::format("  \"chat_profile\": \"{}\",\n", *generation.chat_profile);
  }
  text += fmt::format("  \"bos_token_id\": {},\n", config.bos_token_id);
  if (generation.eos_token_ids.size() == 1) {
    text += fmt::format("  \"eos_token_id\": {},\n", generation.eos_token_ids.front());
  } else {
    text += fmt::format("  \"eos_token_id\": [{}],\n", fmt::join(generation.eos_token_ids, ", "));
  }
  if (generation.top_k >= 0) {
    text += fmt::format("  \"top_k\": {},\n", generation.top_k);
  }
  if (generation.max_new_tokens) {
    text += fmt::format("  \"max_new_tokens\": {},\n", *generation.max_new_tokens);
  }
  return text + fmt::format("  \"do_sample\": {},\n  \"temperature\": {},\n  \"top_p\": {}\n}}\n",
                            generation.do_sample,
                            generation.temperature,
                            generation.top_p);
}

}  // namespace baleen::weights
