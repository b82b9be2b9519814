#include "rl/drawn_texts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/metrics.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"

namespace baleen::rl {

std::vector<DrawnText> draw_texts(std::unique_ptr<engine::Executor> executor,
                                  std::shared_ptr<const text::Tokenizer> tokenizer,
                                  const std::vector<TokenIds>& prompts,
                                  const DrawOptions& options) {
  MetricRegistry metrics;
  engine::EngineConfig config;
  config.max_prefill_chunk = options.chunk;
  engine::Engine engine(config, std::move(executor), std::move(tokenizer), metrics);
  engine.start();
  std::vector<std::shared_ptr<engine::CollectingSink>> sinks;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    engine::GenerationRequest request;
    request.id = std::to_string(i);
    request.prompt = prompts[i];
    request.max_new_tokens = static_cast<int32_t>(options.new_tokens);
    request.ignore_eos = true;
    request.want_logprobs = true;
    request.want_routes = options.choices;
    request.want_picks = options.choices;
    request.max_drafts = options.max_drafts;
    request.sampling.temperature = static_cast<float>(options.temperature);
    request.sampling.seed = options.seed;
    request.sampling.sample_index = static_cast<int32_t>(i);
    request.output.parse_markup = false;
    sinks.push_back(std::make_shared<engine::CollectingSink>());
    const Status status = engine.submit(std::move(request), sinks.back());
    if (!status.ok()) {
      throw Error(fmt::format("text {}: {}", i, status.message));
    }
  }
  std::vector<DrawnText> drawn;
  for (const auto& sink : sinks) {
    sink->wait();
    const engine::FinishInfo finish = sink->finish();
    DrawnText text;
    for (const engine::GeneratedToken& token : sink->tokens()) {
      text.ids.push_back(token.id);
      text.logprobs.push_back(token.logprob);
    }
    if (static_cast<int64_t>(text.ids.size()) != options.new_tokens) {
      throw Error(fmt::format("text {} ended behind {} of {} tokens: {}",
                              drawn.size(),
                              text.ids.size(),
                              options.new_tokens,
                              finish.error.message));
    }
    if (finish.choices) {
      text.choices = *finish.choices;
    }
    text.cached_tokens = finish.cached_tokens;
    drawn.push_back(std::move(text));
  }
  engine.stop();
  return drawn;
}

DrawnDifference compare_drawn(const std::vector<DrawnText>& drawn,
                              const std::vector<TokenPoints>& points) {
  DrawnDifference out;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const std::vector<at::Tensor>& logprobs = points.at(i).at("logprob");
    const std::size_t first = logprobs.size() - drawn[i].ids.size();
    for (std::size_t t = 0; t < drawn[i].ids.size(); ++t) {
      const auto other = logprobs[first + t].item<float>();
      const float own = drawn[i].logprobs[t];
      const double apart = std::abs(static_cast<double>(other) - static_cast<double>(own));
      ++out.tokens;
      out.other_bits += std::bit_cast<uint32_t>(other) == std::bit_cast<uint32_t>(own) ? 0 : 1;
      out.mean_abs += apart;
      out.max = std::max(out.max, apart);
    }
  }
  out.mean_abs /= static_cast<double>(std::max<int64_t>(out.tokens, 1));
  return out;
}

}  // namespace baleen::rl
