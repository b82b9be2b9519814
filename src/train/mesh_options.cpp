#include "train/mesh_options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "mesh/shard_spec.h"
#include "mesh/stage_split.h"
#include "train/option_list.h"

namespace baleen::train {
namespace {

constexpr int64_t kMostRanks = 1024;

/// The number behind `text[at]`, moving `at` behind it; 0 where there is none.
int64_t number_at(const std::string& text, std::size_t& at) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (error != std::errc() || value < 1 || value > kMostRanks) {
    return 0;
  }
  at = static_cast<std::size_t>(end - text.data());
  return value;
}

[[noreturn]] void reject_ranks(const std::string& text) {
  reject_option("ranks",
                fmt::format("\"{}\" is neither a number nor axes with their numbers, like tp2, "
                            "pp2.dp2 or tp2+sp.ep2",
                            text));
}

int64_t& axis_of(MeshOptions& options, const std::string& name, const std::string& text) {
  if (name == "tp") {
    return options.tp;
  }
  if (name == "ep") {
    return options.ep;
  }
  if (name == "pp") {
    return options.pp;
  }
  if (name == "cp") {
    return options.cp;
  }
  if (name == "dp") {
    return options.dp;
  }
  reject_ranks(text);
}

/// Takes axes out of `ranks`; what is left of it is a number, 0 for none.
int64_t take_ranks(MeshOptions& options) {
  const std::string text = options.ranks;
  if (text.empty()) {
    return 0;
  }
  std::size_t at = 0;
  if (const int64_t count = number_at(text, at); count > 0) {
    if (at != text.size()) {
      reject_ranks(text);
    }
    return count;
  }
  while (at < text.size()) {
    std::string name;
    while (at < text.size() && std::isalpha(static_cast<unsigned char>(text[at])) != 0) {
      name.push_back(text[at++]);
    }
    if (name == "sp") {
      options.sp = true;
    } else {
      const int64_t count = number_at(text, at);
      int64_t& axis = axis_of(options, name, text);
      if (count == 0) {
        reject_ranks(text);
      }
      if (axis > 1 && axis != count) {
        reject_option(name.c_str(), fmt::format("{}, but ranks says {}", axis, text));
      }
      axis = count;
    }
    if (at < text.size() && text[at] != '.' && text[at] != '+') {
      continue;  // the next axis may follow at once
    }
    ++at;
  }
  return 0;
}

}  // namespace

comm::MeshShape mesh_shape(const MeshOptions& given) {
  MeshOptions o = given;
  const int64_t ranks = take_ranks(o);
  const std::pair<const char*, int64_t> axes[] = {
      {"tp", o.tp}, {"ep", o.ep}, {"pp", o.pp}, {"cp", o.cp}, {"pp_chunks", o.pp_chunks}};
  for (const auto& [option, count] : axes) {
    check_at_least(option, static_cast<double>(count), 1.0);
  }
  check_at_least("dp", static_cast<double>(o.dp), 0.0);
  check_at_least("rank_timeout_s", static_cast<double>(o.rank_timeout_s), 1.0);
  const int64_t others = o.tp * o.pp * o.cp;
  if (ranks > 0 && ranks % others != 0) {
    reject_option("ranks",
                  fmt::format("{} is no multiple of tp {} x pp {} x cp {}; {} would be",
                              ranks,
                              o.tp,
                              o.pp,
                              o.cp,
                              (ranks / others + 1) * others));
  }
  const int64_t per_sample = o.cp * (o.sp ? o.tp : 1);
  int64_t dp = o.dp;
  if (dp == 0) {
    dp = ranks > 0 ? ranks / others : std::max<int64_t>(1, o.ep / per_sample);
  }
  if (ranks > 0 && dp * others != ranks) {
    reject_option("dp",
                  fmt::format("tp {} x pp {} x cp {} x dp {} are {} ranks, but ranks says {}",
                              o.tp,
                              o.pp,
                              o.cp,
                              dp,
                              dp * others,
                              ranks));
  }
  if (others * dp > kMostRanks) {
    reject_option("ranks", fmt::format("{} are more than {}", others * dp, kMostRanks));
  }
  if (o.sp && o.tp == 1) {
    reject_option("sp", "there are no tensor ranks to share out tokens; set tp, or leave sp out");
  }
  if (o.cp_zig_zag && o.cp == 1) {
    reject_option("cp_zig_zag", "there are no context ranks; set cp, or leave it out");
  }
  if (o.pp_chunks > 1 && o.pp == 1) {
    reject_option("pp_chunks", "there is one stage alone; set pp, or leave it out");
  }
  if (per_sample * dp % o.ep != 0) {
    reject_option("ep",
                  fmt::format("{} does not divide the {} ranks of a stage that hold different "
                              "tokens (dp {} x cp {}{})",
                              o.ep,
                              per_sample * dp,
                              dp,
                              o.cp,
                              o.sp ? fmt::format(" x tp {}", o.tp) : ""));
  }
  comm::MeshShape shape;
  shape.tp = static_cast<int>(o.tp);
  shape.ep = static_cast<int>(o.ep);
  shape.pp = static_cast<int>(o.pp);
  shape.cp = static_cast<int>(o.cp);
  shape.dp = static_cast<int>(dp);
  shape.sequence_parallel = o.sp;
  return shape;
}

void check_mesh(const MeshOptions& options, const ModelConfig& model, int64_t samples_of_step) {
  const comm::MeshShape shape = mesh_shape(options);
  mesh::validate(shape, model);
  mesh::StageSplit::even(model.num_hidden_layers,
                         shape.pp,
                         static_cast<int>(options.pp_chunks),
                         model.num_nextn_predict_layers > 0);
  if (shape.dp > samples_of_step) {
    reject_option(
        "dp",
        fmt::format(
            "{} data ranks are too many for the {} samples of a step", shape.dp, samples_of_step));
  }
}

const std::initializer_list<const char*>& mesh_option_names() {
  static constexpr std::initializer_list<const char*> kNames = {
      "ranks", "tp", "sp", "ep", "pp", "cp", "dp", "pp_chunks", "cp_zig_zag", "rank_timeout_s"};
  return kNames;
}

}  // namespace baleen::train
