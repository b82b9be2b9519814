#include "rl/parity_run.h"

#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "model/load_parameters.h"
#include "rl/drawn_texts.h"
#include "rl/nano_tokenizer.h"
#include "rl/parity.h"
#include "train/nano_model.h"

namespace baleen::rl {
namespace {

std::string numerics_of(const std::string& name, const ModelConfig& config) {
  constexpr std::string_view kFromModel = "checkpoint";
  if (!name.starts_with(kFromModel)) {
    return name;
  }
  return (config.quantization_config ? "reference" : "plain") + name.substr(kFromModel.size());
}

std::vector<TokenIds> random_prompts(const ParityOptions& options, int64_t vocab) {
  std::vector<TokenIds> prompts;
  uint64_t state = options.seed;
  for (int64_t i = 0; i < options.num_texts; ++i) {
    prompts.emplace_back();
    for (int64_t t = 0; t < options.prompt_tokens + i; ++t) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      prompts.back().push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
    }
  }
  return prompts;
}

std::string drawn_line(std::string_view pass, const DrawnDifference& difference) {
  return fmt::format(
      "log-probabilities of the engine and of {}: {} of {} have other bits, mean {:.3e}, max "
      "{:.3e}\n",
      pass,
      difference.other_bits,
      difference.tokens,
      difference.mean_abs,
      difference.max);
}

}  // namespace

std::string run_parity(const ParityOptions& options, const ParityExecutorMaker& make_executor) {
  const bool is_nano = options.model.empty();
  const model::ModelParameters params =
      is_nano ? train::fresh_nano(train::nano_config(), options.seed, at::kFloat)
              : model::load_parameters(options.model, at::TensorOptions(at::kFloat), false);
  const std::string engine_name = numerics_of(options.numerics, params.config);
  const std::string trainer_name = options.trainer_numerics.empty()
                                       ? engine_name
                                       : numerics_of(options.trainer_numerics, params.config);
  std::vector<TokenIds> texts = random_prompts(options, params.config.vocab_size);
  const std::vector<DrawnText> drawn = draw_texts(
      make_executor(
          params,
          {.numerics = engine_name,
           .max_context = options.prompt_tokens + options.num_texts + options.new_tokens + 1,
           .num_slots = static_cast<int32_t>(options.num_texts)}),
      is_nano ? nano_tokenizer() : text::Tokenizer::load(options.model + "/tokenizer.json"),
      texts,
      {.new_tokens = options.new_tokens, .temperature = options.temperature, .seed = options.seed});
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i].insert(texts[i].end(), drawn[i].ids.begin(), drawn[i].ids.end());
  }
  const EnginePass decode{.numerics = ops::Numerics::by_name(engine_name),
                          .temperature = options.temperature};
  EnginePass prefill = decode;
  prefill.prefill = options.prefill;
  const auto by_decode = engine_points(params, texts, decode);
  const auto by_prefill = engine_points(params, texts, prefill);
  const auto by_trainer = trainer_points(
      params,
      texts,
      {.numerics = ops::Numerics::by_name(trainer_name), .temperature = options.temperature});
  return fmt::format(
             "{} texts, engine {}, trainer {}\n", options.num_texts, engine_name, trainer_name) +
         drawn_line("its tokens run one by one", compare_drawn(drawn, by_decode)) +
         drawn_line("the trainer", compare_drawn(drawn, by_trainer)) +
         parity_text(compare_points(by_decode, by_prefill), "engine decode", "engine prefill") +
         parity_text(compare_points(by_decode, by_trainer), "engine decode", "trainer");
}

}  // namespace baleen::rl
