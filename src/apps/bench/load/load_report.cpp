#include "apps/bench/load/load_report.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace baleen::apps {
namespace {

namespace json = boost::json;

std::string optional_text(const std::optional<double>& value, const char* form) {
  return value ? fmt::format(fmt::runtime(form), *value) : std::string();
}

std::string csv_text(std::string text) {
  std::replace(text.begin(), text.end(), ',', ';');
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

json::object spread_json(const Spread& spread) {
  return {{"count", spread.count},
          {"mean", spread.mean},
          {"p50", spread.p50},
          {"p90", spread.p90},
          {"p99", spread.p99},
          {"max", spread.max}};
}

json::value optional_json(const std::optional<double>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::value known(int64_t count) {
  return count >= 0 ? json::value(count) : json::value(nullptr);
}

json::object record_json(const LoadRecord& record) {
  json::object out{
      {"ok", record.ok},
      {"wanted_s", record.wanted_s},
      {"begin_s", record.begin_s},
      {"first_s", record.first_s < 0.0 ? json::value(nullptr) : json::value(record.first_s)},
      {"end_s", record.end_s},
      {"prompt_tokens", known(record.prompt_tokens)},
      {"cached_tokens", known(record.cached_tokens)},
      {"answer_tokens", record.answer_tokens}};
  json::array gaps;
  for (const double gap : record.gaps_s) {
    gaps.push_back(gap);
  }
  out["gaps_s"] = std::move(gaps);
  if (!record.ok) {
    out["error"] = record.error;
  }
  return out;
}

}  // namespace

std::string load_head_text() {
  return fmt::format(
      "{:<10} {:<14} {:>5} {:>5}  {:>8} {:>8} {:>8}  {:>8} {:>8}  {:>8} {:>8}  {:>8} {:>8} {:>6} "
      "{:>6}\n"
      "{:<10} {:<14} {:>5} {:>5}  {:>8} {:>8} {:>8}  {:>8} {:>8}  {:>8} {:>8}  {:>8} {:>8} {:>6} "
      "{:>6}\n",
      "server",
      "pace",
      "done",
      "fail",
      "first",
      "token,",
      "ms",
      "between",
      "tokens",
      "end to",
      "end, ms",
      "answer",
      "all",
      "hits",
      "tok/",
      "",
      "",
      "",
      "",
      "p50",
      "p90",
      "p99",
      "p50",
      "p99",
      "p50",
      "p99",
      "tok/s",
      "tok/s",
      "%",
      "step");
}

std::string load_row_text(const LoadRow& row) {
  const LoadFigures& f = row.figures;
  std::string text = fmt::format(
      "{:<10} {:<14} {:>5} {:>5}  {:>8.1f} {:>8.1f} {:>8.1f}  {:>8.2f} {:>8.2f}  {:>8.0f} {:>8.0f} "
      " "
      "{:>8.1f} {:>8.1f} {:>6} {:>6}\n",
      row.server,
      row.run.level.name(),
      f.requests,
      f.failed,
      f.first_token_ms.p50,
      f.first_token_ms.p90,
      f.first_token_ms.p99,
      f.gap_ms.p50,
      f.gap_ms.p99,
      f.end_to_end_ms.p50,
      f.end_to_end_ms.p99,
      f.answer_tokens_per_s,
      f.total_tokens_per_s,
      f.hit_rate ? fmt::format("{:.1f}", 100.0 * *f.hit_rate) : "-",
      f.accept_length ? fmt::format("{:.2f}", *f.accept_length) : "-");
  if (f.failed > 0) {
    text += fmt::format("  {} of {} requests failed, the first with: {}\n",
                        f.failed,
                        f.failed + f.requests,
                        f.first_error);
  }
  constexpr double kNoticedMs = 50.0;
  if (f.late_ms.p99 > kNoticedMs) {
    text += fmt::format(
        "  requests began up to {:.0f} ms behind their planned time: more at a time are needed "
        "(--max-running)\n",
        f.late_ms.max);
  }
  return text;
}

std::string load_csv_header() {
  std::string header =
      "date,server,model,mix,seed,rate,concurrency,requests,failed,wall_s,prompt_tokens,"
      "answer_tokens";
  for (const char* name : {"first_token_ms", "gap_ms", "per_token_ms", "end_to_end_ms"}) {
    for (const char* part : {"mean", "p50", "p90", "p99"}) {
      header += fmt::format(",{}_{}", name, part);
    }
  }
  return header +
         ",requests_per_s,answer_tokens_per_s,total_tokens_per_s,mean_running,hit_rate,accept_rate,"
         "accept_length,late_ms_p99";
}

std::string load_csv_line(const LoadRow& row) {
  const LoadFigures& f = row.figures;
  std::string line = fmt::format("{},{},{},{},{},{:g},{},{},{},{:.3f},{},{}",
                                 row.date,
                                 csv_text(row.server),
                                 csv_text(row.model),
                                 csv_text(row.mix),
                                 row.seed,
                                 row.run.level.rate,
                                 row.run.level.concurrency,
                                 f.requests,
                                 f.failed,
                                 f.wall_s,
                                 f.prompt_tokens,
                                 f.answer_tokens);
  for (const Spread* spread : {&f.first_token_ms, &f.gap_ms, &f.per_token_ms, &f.end_to_end_ms}) {
    line += fmt::format(
        ",{:.3f},{:.3f},{:.3f},{:.3f}", spread->mean, spread->p50, spread->p90, spread->p99);
  }
  return line + fmt::format(",{:.3f},{:.2f},{:.2f},{:.2f},{},{},{},{:.1f}\n",
                            f.requests_per_s,
                            f.answer_tokens_per_s,
                            f.total_tokens_per_s,
                            f.mean_running,
                            optional_text(f.hit_rate, "{:.4f}"),
                            optional_text(f.accept_rate, "{:.4f}"),
                            optional_text(f.accept_length, "{:.3f}"),
                            f.late_ms.p99);
}

json::object load_row_json(const LoadRow& row) {
  const LoadFigures& f = row.figures;
  json::array requests;
  for (const LoadRecord& record : row.run.records) {
    requests.push_back(record_json(record));
  }
  return {
      {"server", row.server},
      {"url", row.url},
      {"model", row.model},
      {"date", row.date},
      {"mix", row.mix},
      {"seed", row.seed},
      {"rate", row.run.level.rate},
      {"concurrency", row.run.level.concurrency},
      {"num_requests", f.requests},
      {"num_failed", f.failed},
      {"first_error", f.first_error.empty() ? json::value(nullptr) : json::value(f.first_error)},
      {"wall_s", f.wall_s},
      {"prompt_tokens", f.prompt_tokens},
      {"answer_tokens", f.answer_tokens},
      {"first_token_ms", spread_json(f.first_token_ms)},
      {"gap_ms", spread_json(f.gap_ms)},
      {"per_token_ms", spread_json(f.per_token_ms)},
      {"end_to_end_ms", spread_json(f.end_to_end_ms)},
      {"late_ms", spread_json(f.late_ms)},
      {"requests_per_s", f.requests_per_s},
      {"answer_tokens_per_s", f.answer_tokens_per_s},
      {"total_tokens_per_s", f.total_tokens_per_s},
      {"mean_running", f.mean_running},
      {"hit_rate", optional_json(f.hit_rate)},
      {"accept_rate", optional_json(f.accept_rate)},
      {"accept_length", optional_json(f.accept_length)},
      {"requests", std::move(requests)}};
}

}  // namespace baleen::apps
