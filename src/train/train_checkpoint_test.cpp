#include "train/train_checkpoint.h"

#include <atomic>
#include <fstream>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/load_parameters.h"
#include "train/commit_folder.h"
#include "train/published.h"
#include "train/run_rank.h"
#include "train/sort_task.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

namespace fs = std::filesystem;

Trainer new_trainer(OptimizerKind kind, WeightRounding rounding, uint64_t seed = 3) {
  model::ModelParameters params = fresh_nano(nano_config({.with_mtp = true}), seed, at::kFloat);
  if (rounding == WeightRounding::kServed) {
    model::set_formats(params, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
  }
  TrainerConfig config = saved_run_config(kind);
  if (rounding == WeightRounding::kServed) {
    config.objective.numerics = ops::Numerics::reference();
  }
  return Trainer(plain_masters(std::move(params), {.indexer = true}, rounding), config);
}

StepReport run_step(Trainer& trainer) {
  static const SortTask kTask;
  std::vector<Sample> samples;
  for (int64_t i = 0; i < 6; ++i) {
    samples.push_back(kTask.training_sample(9, trainer.next_step() * 6 + i));
  }
  return trainer.step(std::move(samples));
}

void expect_equal_state(const Trainer& found, const Trainer& expected) {
  const std::vector<at::Tensor> values = copied_values(expected.masters());
  for_values(found.masters(), [&](std::size_t i, const std::string& name, const at::Tensor& value) {
    EXPECT_TRUE(at::equal(value, values[i])) << name;
  });
  const auto states = expected.optimizer().states();
  const auto own = found.optimizer().states();
  ASSERT_EQ(own.size(), states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    EXPECT_EQ(own[i].key(), states[i].key());
    EXPECT_TRUE(at::equal(own[i].value, states[i].value)) << own[i].key();
  }
  EXPECT_EQ(found.next_step(), expected.next_step());
  EXPECT_EQ(found.optimizer().num_steps(), expected.optimizer().num_steps());
}

std::string fault_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class TrainCheckpointTest : public testing::Test {
 protected:
  TrainCheckpointTest() : root_(fresh_test_folder("checkpoint")) {}
  ~TrainCheckpointTest() override { fs::remove_all(root_); }

  fs::path root_;
  SaveOptions options_{.settings = {{"seed", "9"}, {"lr", "0.002"}}, .keep = 2};
};

TEST_F(TrainCheckpointTest, AContinuedRunHasTheBitsOfAnUnbrokenOne) {
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kMuon}) {
    for (const WeightRounding rounding : {WeightRounding::kNone, WeightRounding::kServed}) {
      fs::remove_all(root_);
      fs::create_directories(root_);
      Trainer whole = new_trainer(kind, rounding);
      {
        Trainer first = new_trainer(kind, rounding);
        EXPECT_FALSE(restore_checkpoint(root_, first, options_.settings));
        for (int step = 0; step < 3; ++step) {
          run_step(first);
        }
        save_checkpoint(root_, first, options_);
      }
      Trainer second = new_trainer(kind, rounding, 77);  // other values until it is restored
      ASSERT_TRUE(restore_checkpoint(root_, second, options_.settings));
      EXPECT_EQ(saved_step(root_), 3);
      double loss = 0.0;
      for (int step = 0; step < 6; ++step) {
        const StepReport expected = run_step(whole);
        if (step >= 3) {
          const StepReport found = run_step(second);
          EXPECT_EQ(found.loss, expected.loss);
          EXPECT_EQ(found.learning_rate, expected.learning_rate);
          loss = found.loss;
        }
      }
      EXPECT_GT(loss, 0.0);
      expect_equal_state(second, whole);
    }
  }
}

TEST_F(TrainCheckpointTest, Float32ClassesKeepTheirLastBits) {
  Trainer first = new_trainer(OptimizerKind::kAdamW, WeightRounding::kServed);
  const at::Tensor sink = first.masters().values().blocks[1].attention.attn_sink;
  sink.select(0, 0).fill_(1.0F + 0x1p-20F);
  first.masters().refresh_served();
  EXPECT_EQ(first.masters().leaves().blocks[1].attention.attn_sink[0].item<float>(),
            1.0F + 0x1p-20F);
  save_checkpoint(root_, first, options_);
  Trainer second = new_trainer(OptimizerKind::kAdamW, WeightRounding::kServed);
  restore_checkpoint(root_, second, options_.settings);
  EXPECT_EQ(second.masters().leaves().blocks[1].attention.attn_sink[0].item<float>(),
            1.0F + 0x1p-20F);
  write_published(second.masters().values(),
                  root_ / "model",
                  published_format(second.masters().values(), true));
  const model::ModelParameters loaded =
      model::load_parameters(root_ / "model", at::TensorOptions(at::kFloat), true);
  EXPECT_EQ(loaded.blocks[1].attention.attn_sink[0].item<float>(), 1.0F + 0x1p-20F);
}

TEST_F(TrainCheckpointTest, KeepsTheNewestAndWhatLatestNames) {
  Trainer trainer = new_trainer(OptimizerKind::kAdamW, WeightRounding::kNone);
  for (int step = 0; step < 4; ++step) {
    run_step(trainer);
    save_checkpoint(root_, trainer, options_);
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root_)) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("latest", "iter_000000003", "iter_000000004"));
  EXPECT_EQ(pointed_to(root_), "iter_000000004");
}

TEST_F(TrainCheckpointTest, AnInterruptedSaveLeavesTheOldOne) {
  Trainer trainer = new_trainer(OptimizerKind::kAdamW, WeightRounding::kNone);
  run_step(trainer);
  save_checkpoint(root_, trainer, options_);
  {
    CommitFolder half(root_, "iter_000000002");
    std::ofstream(half.path() / "model.safetensors") << "half";
    // As after a kill: the part stays because nobody ran the destructor.
    fs::copy(half.path(), root_ / "kept");
  }
  fs::rename(root_ / "kept", root_ / "iter_000000002.part");
  Trainer again = new_trainer(OptimizerKind::kAdamW, WeightRounding::kNone);
  EXPECT_TRUE(restore_checkpoint(root_, again, options_.settings));
  EXPECT_EQ(again.next_step(), 1);
  run_step(again);
  save_checkpoint(root_, again, options_);
  EXPECT_FALSE(fs::exists(root_ / "iter_000000002.part"));
  EXPECT_EQ(saved_step(root_), 2);
}

TEST_F(TrainCheckpointTest, DamageIsNamed) {
  Trainer trainer = new_trainer(OptimizerKind::kAdamW, WeightRounding::kNone);
  save_checkpoint(root_, trainer, options_);
  const fs::path folder = root_ / "iter_000000000";
  const fs::path copy = fresh_test_folder("damage");
  const auto damaged = [&](const std::function<void()>& act) {
    fs::remove_all(copy);
    fs::copy(folder, copy, fs::copy_options::recursive);
    act();
    const std::string text =
        fault_of([&] { restore_checkpoint(root_, trainer, options_.settings); });
    fs::remove_all(folder);
    fs::copy(copy, folder, fs::copy_options::recursive);
    return text;
  };
  EXPECT_THAT(damaged([&] { fs::remove(folder / "optim.safetensors"); }),
              testing::HasSubstr("optim.safetensors: the file is missing"));
  EXPECT_THAT(damaged([&] { fs::resize_file(folder / "model.safetensors", 5000); }),
              testing::HasSubstr("model.safetensors: 5000 bytes, expected"));
  EXPECT_THAT(damaged([&] {
                std::fstream file(folder / "model.safetensors",
                                  std::ios::in | std::ios::out | std::ios::binary);
                file.seekp(-9, std::ios::end);
                file.put('x');
              }),
              testing::HasSubstr("model.safetensors: its checksum is wrong"));
  EXPECT_THAT(damaged([&] { std::ofstream(root_ / "latest") << "iter_7\n"; }),
              testing::HasSubstr("names \"iter_7\""));
  point_to(root_, "iter_000000000");
  RunSettings other = options_.settings;
  other["lr"] = "0.5";
  EXPECT_THAT(fault_of([&] { restore_checkpoint(root_, trainer, other); }),
              testing::HasSubstr("the saved run has lr 0.002, this one 0.5"));
  fs::remove_all(copy);
}

TEST_F(TrainCheckpointTest, OptimizerStateIsNeverMadeUpSilently) {
  Trainer frozen(plain_masters(fresh_nano(nano_config({.with_mtp = true}), 3, at::kFloat),
                               {.indexer = true, .patterns = {"layers\\.1\\.attn\\.wkv.*"}}),
                 saved_run_config(OptimizerKind::kAdamW));
  save_checkpoint(root_, frozen, options_);
  Trainer trainer = new_trainer(OptimizerKind::kAdamW, WeightRounding::kNone);
  EXPECT_THAT(fault_of([&] { restore_checkpoint(root_, trainer, options_.settings); }),
              testing::HasSubstr("layers.1.attn.wkv.weight.m is missing"));
  EXPECT_TRUE(restore_checkpoint(root_, trainer, options_.settings, LoadOptimizer::kSkip));
  Trainer all = new_trainer(OptimizerKind::kAdamW, WeightRounding::kNone);
  save_checkpoint(root_, all, options_);
  EXPECT_THAT(fault_of([&] { restore_checkpoint(root_, frozen, options_.settings); }),
              testing::HasSubstr("belongs to no trained parameter"));
}

/// Counts the bytes of tensors that are alive on the CPU.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr memory = inner_->allocate(bytes);
    const int64_t now = live += static_cast<int64_t>(bytes);
    for (int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {
    }
    auto* note = new Note{std::move(memory), static_cast<int64_t>(bytes), this};
    return {note->memory.get(), note, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::atomic<int64_t> live = 0;
  std::atomic<int64_t> peak = 0;

 private:
  struct Note {
    c10::DataPtr memory;
    int64_t bytes;
    CountingAllocator* owner;
  };
  static void release(void* context) {
    auto* note = static_cast<Note*>(context);
    note->owner->live -= note->bytes;
    delete note;
  }
  c10::Allocator* inner_;
};

/// A process-wide allocator: it must outlive every tensor, so it is never freed.
CountingAllocator* counting_allocator() {
  static auto* counter = new CountingAllocator(c10::GetDefaultCPUAllocator());
  return counter;
}

TEST(TrainMemoryTest, LoadingAndResumingStayUnderTheSteadyState) {
  CountingAllocator* counter = counting_allocator();
  const fs::path root = fresh_test_folder("memory");
  const SaveOptions options{.settings = {}, .keep = 1};
  for (const WeightRounding rounding : {WeightRounding::kNone, WeightRounding::kServed}) {
    fs::remove_all(root);
    fs::create_directories(root);
    {
      Trainer first = new_trainer(OptimizerKind::kAdamW, rounding);
      run_step(first);
      save_checkpoint(root, first, options);
      write_published(
          first.masters().values(),
          root / "model",
          published_format(first.masters().values(), rounding == WeightRounding::kServed));
    }
    c10::SetCPUAllocator(counter, /*priority=*/200);
    counter->live = 0;
    counter->peak = 0;
    {
      model::ModelParameters params =
          model::load_parameters(root / "model", at::TensorOptions(at::kFloat), true);
      Trainer trainer(plain_masters(std::move(params), {.indexer = true}, rounding),
                      saved_run_config(OptimizerKind::kAdamW));
      restore_checkpoint(root, trainer, options.settings);
      const int64_t steady = trainer.masters().bytes() + trainer.optimizer().bytes();
      EXPECT_GE(counter->peak, steady);
      EXPECT_LE(static_cast<double>(counter->peak), 1.1 * static_cast<double>(steady));
      // Steps allocate and free activations; what stays is the state.
      run_step(trainer);
      const int64_t after_first = counter->live;
      run_step(trainer);
      run_step(trainer);
      EXPECT_EQ(counter->live, after_first);
      EXPECT_LE(static_cast<double>(counter->live), 1.1 * static_cast<double>(steady));
    }
    c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), /*priority=*/200);
  }
  fs::remove_all(root);
}

TEST(TrainMemoryTest, RanksLoadUnderTheirSteadyStateAndKeepNothingOfAStep) {
  CountingAllocator* counter = counting_allocator();
  const fs::path root = fresh_test_folder("memory_ranks");
  {
    Trainer first = new_trainer(OptimizerKind::kAdamW, WeightRounding::kNone);
    run_step(first);
    save_checkpoint(root, first, {.settings = {}, .keep = 1});
  }
  for (const char* ranks : {"dp4", "tp2.pp2"}) {
    SCOPED_TRACE(ranks);
    c10::SetCPUAllocator(counter, /*priority=*/200);
    counter->live = 0;
    counter->peak = 0;
    int64_t peak_of_load = 0;
    std::vector<int64_t> live;  // behind each step
    run_on_ranks(
        {.ranks = ranks},
        fresh_nano(nano_config({.with_mtp = true}), 77, at::kFloat),
        [](model::ModelParameters own) { return plain_masters(std::move(own), {.indexer = true}); },
        saved_run_config(OptimizerKind::kAdamW),
        /*threads=*/1,
        [&](RunRank& rank) {
          restore_checkpoint(
              root, rank.trainer(), {}, LoadOptimizer::kRequired, rank.checkpoint_rank());
          rank.checkpoint_rank().wait();  // all ranks are here
          if (rank.is_first()) {
            peak_of_load = counter->peak;
          }
          for (int step = 0; step < 4; ++step) {
            std::vector<Sample> samples;
            for (int64_t i = 0; i < 8; ++i) {
              samples.push_back(SortTask().training_sample(9, rank.trainer().next_step() * 8 + i));
            }
            rank.step(std::move(samples));
            rank.checkpoint_rank().wait();
            if (rank.is_first()) {
              live.push_back(counter->live);
            }
            rank.checkpoint_rank().wait();
          }
        });
    c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), /*priority=*/200);
    EXPECT_LE(static_cast<double>(peak_of_load), 1.1 * static_cast<double>(live[0]));
    EXPECT_EQ(live[2], live[1]);
    EXPECT_EQ(live[3], live[1]);
  }
  fs::remove_all(root);
}

TEST(PublishedTest, TheQuantisedModelComesBackValueForValue) {
  const fs::path folder = fresh_test_folder("published");
  model::ModelParameters params =
      model::load_parameters("models/abacus", at::TensorOptions(at::kFloat), true);
  std::vector<at::Tensor> expected;
  model::for_each_parameter(params, [&](const model::ParameterInfo&, at::Tensor& value) {
    expected.push_back(value.clone());
  });
  const Masters masters = plain_masters(std::move(params), {}, WeightRounding::kServed);
  write_published(masters.values(), folder, published_format(masters.values(), true));
  model::ModelParameters loaded =
      model::load_parameters(folder, at::TensorOptions(at::kFloat), true);
  std::size_t next = 0;
  model::for_each_matrix_or_tensor(
      loaded, [&](const model::ParameterInfo& info, at::Tensor& value, ops::LinearFormat* format) {
        EXPECT_TRUE(at::equal(value, expected[next])) << info.name;
        if (info.role == model::ParameterRole::kExpertMatrix) {
          EXPECT_EQ(*format, ops::LinearFormat::kFp4) << info.name;
        }
        ++next;
      });
  EXPECT_EQ(next, expected.size());
  EXPECT_THAT(fault_of([&] {
                write_published(masters.values(), folder, published_format(masters.values(), true));
              }),
              testing::HasSubstr("there is a model already"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace baleen::train
