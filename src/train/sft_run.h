#pragma once
// A whole supervised run: sources, trainer, steps, metrics, checkpoints, export. What a step trains
// is a function of config, data and step number, so a run that was ended at any moment continues
// from its last checkpoint to the same bits. Called by one thread.
//
//   SftSummary summary = run_sft(config, {.say = print, .on_step = show, .stop = asked});

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "train/sft_config.h"
#include "train/step_report.h"

namespace baleen::train {

struct SftProgress {
  int64_t num_steps = 0;  // of the run
  double step_seconds = 0.0;
  double tokens_per_second = 0.0;
  double eta_seconds = 0.0;
};

/// Each may be empty.
struct SftEvents {
  std::function<void(const std::string& line)> say = {};  // beginnings and ends
  std::function<void(const StepReport&, const SftProgress&)> on_step = {};
  std::function<bool()> stop = {};  // asked after every step; true: save and end
};

struct SftSummary {
  int64_t first_step = 0;  // that this call made; next_step when there was none left
  int64_t next_step = 0;
  bool stopped = false;
  double last_loss = std::numeric_limits<double>::quiet_NaN();
  double accuracy = std::numeric_limits<double>::quiet_NaN();  // of the task, at the end
  double seconds = 0.0;                                        // of the steps
};

/// Throws Error with one sentence: option, file or line, what came, what to do.
SftSummary run_sft(const SftConfig& config, const SftEvents& events);

/// "step 12/160 | loss 0.5712 | ..." with the time that is left.
std::string progress_text(const StepReport& report, const SftProgress& progress);

}  // namespace baleen::train
