#include <cstdio>
#include <memory>
#include <string>

#include "apps/commands.h"
#include "apps/model_source.h"
#include "apps/number_check.h"
#include "apps/plan_report.h"
#include "runner/decode/kernel_decode.h"
#include "weights/json_text.h"

namespace baleen::apps {
namespace {

struct PlanFlags {
  std::string config = "flash";
  std::string format = "fp4";
  std::string index = "fp8";
  double memory_gib = 0.0;  // 0: not given
  bool no_drafts = false;
  bool json = false;
  std::string device = "cpu";
  int64_t context = 0;  // 0: as config.json says
  int32_t max_drafts = 3;
  int32_t max_step_tokens = 2048;
  PlanRequest request;
};

void run(const PlanFlags& flags) {
  const ModelConfig config = config_from(flags.config);
  PlanRequest request = flags.request;
  request.format = format_from(flags.format);
  request.cache_formats.index =
      flags.index == "fp4" ? cache::IndexFormat::kFp4 : cache::IndexFormat::kFp8;
  request.options.drafts = !flags.no_drafts && config.num_nextn_predict_layers > 0;
  if (flags.memory_gib > 0) {
    request.memory_gib = flags.memory_gib;
  }
  if (flags.device == "cuda") {
    request.device_needs = [&flags, &request](const ModelConfig& shape,
                                              const cache::CachePlanOptions& options) {
      return runner::kernel_decode_needs(
                 shape,
                 {.num_slots = static_cast<int32_t>(options.max_running_requests),
                  .max_context = flags.context > 0 ? flags.context : shape.max_position_embeddings,
                  .max_drafts = options.drafts ? flags.max_drafts : 0,
                  .max_step_tokens = flags.max_step_tokens,
                  .record_choices = request.record_choices})
          .total();
    };
  }
  const PlanReport report = make_plan(config, request);
  const std::string text =
      flags.json ? weights::json_object_text(plan_json(report)) : plan_text(report);
  std::fputs(text.c_str(), stdout);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();  // shared with the callback
  CLI::App* command = app.add_subcommand(
      "plan", "Print what a model needs and what fits, without loading it and without a GPU");
  command->add_option("--config",
                      flags->config,
                      "flash, pro, flash-4layer, tiny, toy, or a config.json or its folder");
  command->add_option("--format", flags->format, "Weights: fp4 is the published form")
      ->check(CLI::IsMember(format_names()));
  command->add_option("--index-format", flags->index, "Index keys in the cache")
      ->check(CLI::IsMember({"fp8", "fp4"}));
  command->add_option("--ranks", flags->request.num_ranks, "Tensor-parallel ranks")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--memory-gib",
                   flags->memory_gib,
                   "Memory of one rank for weights and cache, in GiB (0: do not fit a cache)")
      ->check(number_in(0.0, 1e9));
  cache::CachePlanOptions& options = flags->request.options;
  command
      ->add_option(
          "--max-running-requests", options.max_running_requests, "Requests that run at once")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--chunk-tokens", options.chunk_tokens, "Tokens of one prefill step")
      ->check(CLI::Range(1, 1 << 30));
  command
      ->add_option("--swa-full-tokens-ratio",
                   options.swa_full_tokens_ratio,
                   "Window pages kept per page of the compressed pools")
      ->check(number_in(0.0, 1.0));
  command
      ->add_option("--checkpoint-memory-fraction",
                   options.checkpoint_memory_fraction,
                   "Share of the cache memory for resume points")
      ->check(number_in(0.0, 1.0));
  command->add_flag("--no-drafts", flags->no_drafts, "Without speculation: shorter rings");
  command->add_flag("--record-choices",
                    flags->request.record_choices,
                    "With a record of every cached token's experts and picked entries");
  command
      ->add_option("--device",
                   flags->device,
                   "cuda: with the device memory that serving on kernels takes beside the cache")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command
      ->add_option("--context-length",
                   flags->context,
                   "With --device cuda: tokens of one sequence; 0: as config.json says")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command->add_option("--drafts", flags->max_drafts, "With --device cuda: drafts of a request")
      ->check(CLI::Range(1, 16));
  command
      ->add_option("--max-step-tokens",
                   flags->max_step_tokens,
                   "With --device cuda: tokens of one forward step")
      ->check(CLI::Range(1, 1 << 30));
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags] { run(*flags); });
}

}  // namespace baleen::apps
