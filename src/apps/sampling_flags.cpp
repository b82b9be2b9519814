#include "apps/sampling_flags.h"

namespace baleen::apps {

void SamplingFlags::add(CLI::App& command) {
  command.add_option("--temperature", temperature, "0: always the likeliest token");
  command.add_option("--top-p", top_p, "Keep the likeliest tokens up to this probability, (0, 1]");
  command.add_option("--top-k", top_k, "Keep this many of the likeliest tokens; -1: all");
  command.add_option("--min-p", min_p, "Keep tokens with this part of the largest probability");
  command.add_option("--frequency-penalty", frequency_penalty, "[-2, 2]");
  command.add_option("--presence-penalty", presence_penalty, "[-2, 2]");
  command.add_option("--repetition-penalty", repetition_penalty, "(0, 2]");
  command.add_option("--seed", seed, "The same seed gives the same answer");
  command.add_option(
      "--max-new-tokens", max_new_tokens, "Tokens of the answer, reasoning included");
  command.add_option("--stop", stop, "End the answer before this text; may be given several times")
      ->take_all();
  command.add_flag("--ignore-eos", ignore_eos, "Go on past the end token");
}

void SamplingFlags::apply(const weights::GenerationConfig& defaults,
                          engine::GenerationRequest& request) const {
  engine::SamplingConfig& s = request.sampling;
  s.temperature =
      temperature.value_or(defaults.do_sample ? static_cast<float>(defaults.temperature) : 0.0F);
  s.top_p = top_p.value_or(static_cast<float>(defaults.top_p));
  s.top_k = top_k.value_or(static_cast<int32_t>(defaults.top_k));
  s.min_p = min_p;
  s.frequency_penalty = frequency_penalty;
  s.presence_penalty = presence_penalty;
  s.repetition_penalty = repetition_penalty;
  s.seed = seed;
  request.max_new_tokens = max_new_tokens;
  request.output.stop = stop;
  request.ignore_eos = ignore_eos;
}

}  // namespace baleen::apps
