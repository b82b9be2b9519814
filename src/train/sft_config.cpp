#include "train/sft_config.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "train/loss_scale.h"
#include "train/schedule.h"
#include "weights/json_fields.h"
#include "weights/json_text.h"
#include "weights/mapped_file.h"

namespace baleen::train {
namespace {

namespace json = boost::json;

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int64_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

std::string nearest_option(std::string_view key) {
  SftConfig config;
  std::string nearest;
  int64_t least = 0;
  for_each_option(config, [&](const char* name, auto&, const char*) {
    const int64_t distance = edit_distance(key, name);
    if (nearest.empty() || distance < least) {
      nearest = name;
      least = distance;
    }
  });
  return nearest;
}

[[noreturn]] void wrong(const std::string& where, const char* name, const char* expected) {
  throw ConfigError(fmt::format("{}: {}: expected {}", where, name, expected));
}

void set_option(const json::value& value, const std::string& where, const char* name, bool& field) {
  if (!value.is_bool()) {
    wrong(where, name, "true or false");
  }
  field = value.as_bool();
}

void set_option(const json::value& value,
                const std::string& where,
                const char* name,
                int64_t& field) {
  json::error_code error;
  const auto number = value.to_number<int64_t>(error);
  if (error) {
    wrong(where, name, "a whole number");
  }
  field = number;
}

void set_option(const json::value& value,
                const std::string& where,
                const char* name,
                double& field) {
  if (!value.is_number()) {
    wrong(where, name, "a number");
  }
  field = value.to_number<double>();
}

void set_option(const json::value& value,
                const std::string& where,
                const char* name,
                std::string& field) {
  if (!value.is_string()) {
    wrong(where, name, "a string");
  }
  field = value.as_string();
}

void set_option(const json::value& value,
                const std::string& where,
                const char* name,
                std::vector<std::string>& field) {
  const json::array* list = value.if_array();
  if (list == nullptr) {
    wrong(where, name, "a list of strings");
  }
  field.clear();
  for (const json::value& entry : *list) {
    set_option(entry, where, name, field.emplace_back());
  }
}

json::value option_value(const std::vector<std::string>& field) {
  return json::array(field.begin(), field.end());
}
template <class Field>
json::value option_value(const Field& field) {
  return json::value(field);
}

[[noreturn]] void reject(const char* option, const std::string& text) {
  throw ConfigError(fmt::format("{}: {}", option, text));
}

void one_of(const char* option,
            const std::string& value,
            std::initializer_list<const char*> known) {
  for (const char* name : known) {
    if (value == name) {
      return;
    }
  }
  reject(option, fmt::format("\"{}\" is none of {}", value, fmt::join(known, ", ")));
}

void at_least(const char* option, double value, double low) {
  if (!(value >= low)) {
    reject(option, fmt::format("{} is too small, the least is {}", value, low));
  }
}

void check_ranges(const SftConfig& c) {
  at_least("steps", static_cast<double>(c.steps), 1);
  at_least("seed", static_cast<double>(c.seed), 0);
  at_least("global_batch_size", static_cast<double>(c.global_batch_size), 1);
  at_least("micro_batch_tokens", static_cast<double>(c.micro_batch_tokens), 0);
  at_least("max_length", static_cast<double>(c.max_length), 2);
  at_least("pad_multiple", static_cast<double>(c.pad_multiple), 1);
  at_least("lr", c.lr, 0.0);
  at_least("min_lr", c.min_lr, 0.0);
  at_least("lr_warmup_steps", static_cast<double>(c.lr_warmup_steps), 0);
  at_least("wsd_decay_steps", static_cast<double>(c.wsd_decay_steps), 0);
  at_least("adam_epsilon", c.adam_epsilon, 0.0);
  at_least("weight_decay", c.weight_decay, 0.0);
  at_least("clip_grad", c.clip_grad, 0.0);
  at_least("mtp_loss_scaling", c.mtp_loss_scaling, 0.0);
  at_least("balance_loss_scaling", c.balance_loss_scaling, 0.0);
  at_least("index_loss_scaling", c.index_loss_scaling, 0.0);
  at_least("expert_bias_rate", c.expert_bias_rate, 0.0);
  at_least("prompt_weight", c.prompt_weight, 0.0);
  at_least("max_bad_lines", static_cast<double>(c.max_bad_lines), 0);
  at_least("save_interval", static_cast<double>(c.save_interval), 0);
  at_least("keep_checkpoints", static_cast<double>(c.keep_checkpoints), 1);
  at_least("threads", static_cast<double>(c.threads), 1);
  const std::pair<const char*, double> shares[] = {{"adam_beta1", c.adam_beta1},
                                                   {"adam_beta2", c.adam_beta2},
                                                   {"muon_momentum", c.muon_momentum}};
  for (const auto& [option, value] : shares) {
    if (!(value >= 0.0 && value < 1.0)) {
      reject(option, fmt::format("{} is outside of [0, 1)", value));
    }
  }
  if (c.log_probs_chunk_size == 0 || c.log_probs_chunk_size < -1) {
    reject("log_probs_chunk_size",
           fmt::format("{} is neither positive nor -1 for all rows", c.log_probs_chunk_size));
  }
}

void check_sources(const SftConfig& c) {
  one_of("task", c.task, {"", "sort"});
  if (!c.task.empty()) {
    if (!c.model.empty() || !c.data.empty() || c.fresh) {
      reject("task", "the nano job brings its model and data; leave out model, data and fresh");
    }
    return;
  }
  if (c.model.empty()) {
    reject("model", "name a checkpoint folder, or choose the built-in job with task = sort");
  }
  if (c.data.empty()) {
    reject("data", "name at least one JSON-lines file");
  }
}

}  // namespace

SftConfig default_config(const std::string& task) {
  SftConfig config;
  if (task == "sort") {
    config.task = task;
    config.steps = 160;
    config.global_batch_size = 64;
    config.lr = 1e-3;
    config.lr_warmup_steps = 20;
    config.weight_decay = 0.0;
  }
  return config;
}

void read_sft_config(const std::filesystem::path& path, SftConfig& config) {
  const std::string where = path.string();
  const json::object object = weights::parse_json_object(weights::read_text_file(path), where);
  std::set<std::string> known;
  for_each_option(config, [&](const char* name, auto& field, const char*) {
    known.insert(name);
    if (const json::value* value = object.if_contains(name)) {
      set_option(*value, where, name, field);
    }
  });
  for (const auto& entry : object) {
    const std::string key(entry.key());
    if (!known.contains(key)) {
      throw ConfigError(fmt::format("{}: unknown key \"{}\"; the nearest is \"{}\"",
                                    where,
                                    key.substr(0, 100),
                                    nearest_option(key.substr(0, 100))));
    }
  }
}

void validate(const SftConfig& c) {
  check_sources(c);
  if (c.output.empty()) {
    reject("output", "name a folder for checkpoints and metrics");
  }
  check_ranges(c);
  one_of("optimizer", c.optimizer, {"adamw", "muon"});
  parse_decay_style(c.lr_decay_style);
  parse_loss_aggregation(c.loss_agg);
  one_of("precision", c.precision, {"checkpoint", "f32", "bf16", "fp8", "fp4"});
  one_of("attention_qat", c.attention_qat, {"auto", "on", "off"});
  one_of("recompute", c.recompute, {"none", "block"});
  one_of("freeze_mhc", c.freeze_mhc, {"none", "comb", "all"});
  one_of("thinking", c.thinking, {"auto", "on", "off"});
  one_of("chat_profile", c.chat_profile, {"", "v4", "v4-0731", "v4.1"});
  for (const std::string& role : c.train_roles) {
    one_of("train_roles", role, {"system", "user", "assistant"});
  }
  if (c.lr_decay_style == "wsd" && c.wsd_decay_steps > c.steps) {
    reject("wsd_decay_steps",
           fmt::format("{} is longer than the run of {} steps", c.wsd_decay_steps, c.steps));
  }
  if (c.freeze_indexer != (c.index_loss_scaling == 0.0)) {
    reject("freeze_indexer",
           c.freeze_indexer
               ? "the indexer is frozen, but index_loss_scaling asks to train it; set it to false"
               : "no gradient reaches the indexer without index_loss_scaling; set it to true");
  }
}

std::string sft_config_json(const SftConfig& config) {
  json::object object;
  for_each_option(config, [&](const char* name, const auto& field, const char*) {
    object[name] = option_value(field);
  });
  return weights::json_object_text(object);
}

RunSettings run_settings(const SftConfig& config) {
  static const std::set<std::string> kFree = {"output",
                                              "export_to",
                                              "save_interval",
                                              "keep_checkpoints",
                                              "threads",
                                              "max_bad_lines",
                                              "model",
                                              "data"};
  RunSettings settings;
  for_each_option(config, [&](const char* name, const auto& field, const char*) {
    const bool decides_nothing =
        std::string_view(name) == "steps" && config.lr_decay_style == "constant";
    if (!kFree.contains(name) && !decides_nothing) {
      settings[name] = json::serialize(option_value(field));
    }
  });
  return settings;
}

}  // namespace baleen::train
