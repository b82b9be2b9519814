#pragma once
// Runs an executor's steps on a thread of its own, one after the other, so that the engine plans
// the next step and hands out the results of the one before in the meantime. Owned by EngineCore,
// called on its thread. After a failure no further step is run.
//
//   StepWorker worker(executor);
//   worker.submit(plan_a);  worker.submit(plan_b);    // at most one earlier step unfinished
//   StepResult& a = worker.wait();                    // of the oldest; throws what the executor
//                                                     // threw

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/executor.h"

namespace baleen::engine {

class StepWorker {
 public:
  /// `executor` outlives the worker; only the worker calls submit and wait of it.
  explicit StepWorker(Executor& executor);
  /// Waits for the step that runs.
  ~StepWorker();
  StepWorker(const StepWorker&) = delete;
  StepWorker& operator=(const StepWorker&) = delete;

  /// `plan` stays as it is until its result was taken. `masks` is called on the worker's thread.
  void submit(const BatchPlan& plan, MaskProvider masks);
  /// Result of the oldest step, waited for. Throws what the executor threw, then and ever after.
  /// Valid until the next submit(): what is left in it is freed where it was made.
  StepResult& wait();
  /// The same, null if the step takes longer.
  StepResult* wait_for(std::chrono::nanoseconds patience);
  int32_t num_in_flight() const { return static_cast<int32_t>(num_submitted_ - num_taken_); }

 private:
  static constexpr int64_t kDepth = 2;
  void run();
  StepResult& take();

  Executor& executor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Order {
    const BatchPlan* plan = nullptr;
    MaskProvider masks;
  };
  std::array<Order, kDepth> orders_;  // step s at s modulo kDepth
  std::array<StepResult, kDepth> results_;
  int64_t num_submitted_ = 0;
  int64_t num_done_ = 0;
  int64_t num_taken_ = 0;  // the caller's
  std::exception_ptr failure_;
  bool stops_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace baleen::engine
