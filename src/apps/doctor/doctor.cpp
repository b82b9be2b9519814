#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "apps/chat_profile_choice.h"
#include "apps/commands.h"
#include "apps/doctor/gpu_look.h"
#include "base/error.h"
#include "cache/memory_plan.h"
#include "http/server.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/config_json.h"
#include "weights/generation_config.h"

namespace baleen::apps {
namespace {

#ifdef BALEEN_CUDA_PROGRAM
constexpr bool kBuiltWithCuda = true;
#else
constexpr bool kBuiltWithCuda = false;
#endif

struct DoctorFlags {
  std::string folder;
  std::string device = "cpu";
  std::string host = "127.0.0.1";
  int port = 30000;
};

/// One line per check: ok, warn or fail, what was looked at, and what was found or is to be done.
class Report {
 public:
  void say(const char* verdict, const char* what, const std::string& text) {
    std::printf("%-4s  %-10s  %s\n", verdict, what, text.c_str());
  }
  /// `look` gives what it found, or throws why it is no good.
  void check(const char* what, const std::function<std::string()>& look) {
    try {
      say("ok", what, look());
    } catch (const std::exception& error) {
      say("fail", what, error.what());
      failed_ = true;
    }
  }
  void add(const char* what, const CheckLine& line) {
    constexpr const char* kNames[] = {"ok", "warn", "fail"};
    say(kNames[static_cast<int>(line.verdict)], what, line.text);
    failed_ = failed_ || line.verdict == Verdict::kFail;
  }
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

void check_machine(Report& report) {
#if defined(__x86_64__)
  report.check("processor", [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
      throw Error(
          "no AVX2 or FMA: this build needs an x86-64-v3 processor; build on this machine with "
          "-DBALEEN_CPU_ARCH=native");
    }
    return fmt::format("{} cores with AVX2 and FMA", ::sysconf(_SC_NPROCESSORS_ONLN));
  });
#endif
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  constexpr rlim_t kWantedFiles = 4096;
  report.say(files.rlim_cur >= kWantedFiles ? "ok" : "warn",
             "files",
             files.rlim_cur >= kWantedFiles
                 ? fmt::format("{} descriptors may be open", files.rlim_cur)
                 : fmt::format("{} descriptors may be open and each client needs one: run "
                               "\"ulimit -n 65536\" before serving",
                               files.rlim_cur));
}

double available_gib() {
  const auto pages = static_cast<double>(::sysconf(_SC_AVPHYS_PAGES));
  return pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 30);
}

/// Bytes of a checkpoint's tensors, 0 where they cannot be counted: check_model() says why.
int64_t weight_bytes(const std::filesystem::path& folder) {
  try {
    return folder.empty() ? 0
                          : static_cast<int64_t>(weights::Checkpoint::open(folder).total_bytes());
  } catch (const std::exception&) {
    return 0;
  }
}

void check_gpus(Report& report, const DoctorFlags& flags) {
  const GpuWish wish{.device = flags.device,
                     .built_with_cuda = kBuiltWithCuda,
                     .weight_bytes = flags.device == "cpu" ? 0 : weight_bytes(flags.folder)};
  for (const CheckLine& line : gpu_lines(look_at_gpus(cuda_driver_symbols()), wish)) {
    report.add("gpu", line);
  }
}

void check_model(Report& report, const std::filesystem::path& folder) {
  if (folder.empty()) {
    report.say(
        "warn", "model", "no folder given, so only the machine was looked at: baleen doctor MODEL");
    return;
  }
  report.check("config", [&] {
    const weights::ParsedConfig parsed = weights::read_config_json(folder / "config.json");
    std::string unknown;
    for (const std::string& key : parsed.unknown_keys) {
      unknown += (unknown.empty() ? "; keys without meaning: " : ", ") + key;
    }
    return fmt::format("{} layers, vocabulary {}, context {}{}",
                       parsed.config.num_hidden_layers,
                       parsed.config.vocab_size,
                       parsed.config.max_position_embeddings,
                       unknown);
  });
  report.check("weights", [&] {
    const weights::Checkpoint checkpoint = weights::Checkpoint::open(folder);
    const auto bytes = static_cast<double>(checkpoint.total_bytes());
    const double gib = bytes / (1 << 30);
    const std::string size =
        gib < 1.0 ? fmt::format("{:.1f} MiB", bytes / (1 << 20)) : fmt::format("{:.1f} GiB", gib);
    if (gib > available_gib()) {
      throw Error(fmt::format(
          "{} of tensors, but {:.1f} GiB of memory are free: stop what else runs, or see "
          "\"baleen plan --config {}\" for what a machine must have",
          size,
          available_gib(),
          folder.string()));
    }
    return fmt::format("{} tensors, {}, all there; {:.1f} GiB of memory are free",
                       checkpoint.parameters().size(),
                       size,
                       available_gib());
  });
  report.check("cache", [&] {
    const ModelConfig config = weights::read_config_json(folder / "config.json").config;
    const double bytes = cache::retained_bytes_per_token(cache::cache_shape(config, {})).total();
    constexpr double kDefaultMib = 256.0;
    return fmt::format(
        "{:.0f} bytes stay with a token: the default of {:.0f} MiB keeps up to {:.0f} tokens "
        "(--cache-mib for more; a server on kernels takes what the device has left)",
        bytes,
        kDefaultMib,
        kDefaultMib * (1 << 20) / bytes);
  });
  report.check("tokenizer", [&] {
    const auto tokenizer = text::Tokenizer::load(folder / "tokenizer.json");
    for (const char* token : {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"}) {
      tokenizer->require(token, "the chat format");
    }
    return fmt::format("{} ids, with the control tokens of the chat format",
                       tokenizer->vocab_size());
  });
  report.check("format", [&] {
    const weights::ParsedConfig parsed = weights::read_config_json(folder / "config.json");
    const weights::GenerationConfig generation =
        weights::read_generation_config(folder, parsed.config);
    const ChatProfileChoice choice =
        choose_chat_profile(folder, generation.chat_profile, parsed.has_dspark_keys, "");
    return fmt::format("chat profile {} because {}", choice.name, choice.reason);
  });
}

void doctor(const DoctorFlags& flags) {
  Report report;
  report.say("ok", "program", "baleen " BALEEN_VERSION);
  check_machine(report);
  check_gpus(report, flags);
  check_model(report, flags.folder);
  report.check("address", [&] {
    http::ServerConfig config;
    config.host = flags.host;
    config.port = flags.port;
    const http::Server probe(config, {}, {});
    return fmt::format("{} is free", probe.url());
  });
  if (report.failed()) {
    throw Error("doctor: something failed, see above; serving would end the same way");
  }
  if (!flags.folder.empty()) {
    report.say("ok",
               "next",
               fmt::format("baleen serve {} --port {}{}",
                           flags.folder,
                           flags.port,
                           flags.device == "cpu" ? "" : " --device " + flags.device));
  }
}

}  // namespace

void add_doctor(CLI::App& app) {
  auto flags = std::make_shared<DoctorFlags>();  // shared with the callback
  CLI::App* command = app.add_subcommand(
      "doctor", "Look at the machine, a checkpoint and the address before serving");
  command->add_option("model", flags->folder, "Checkpoint folder; without it only the machine");
  command->add_option(
      "--device", flags->device, "Where serve is to run the model: cpu, cuda or cuda:N");
  command->add_option("--host", flags->host, "Address that serve is to listen on");
  command->add_option("--port", flags->port, "Its port")->check(CLI::Range(0, 65535));
  command->callback([flags] { doctor(*flags); });
}

}  // namespace baleen::apps
